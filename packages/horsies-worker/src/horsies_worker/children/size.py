"""How many child processes the pool keeps; an operator can change it while the worker runs."""

from dataclasses import dataclass, field


@dataclass(eq=False)
class PoolSize:
    processes: int
    """The wanted number."""
    proven: int = field(default=0, init=False)
    """The largest number of children that were ready at the same time, at most `processes`."""

    def change(self, processes: int) -> None:
        self.processes = processes
        self.proven = min(self.proven, processes)

    def prove(self, ready: int) -> None:
        """So many children are ready."""
        self.proven = max(self.proven, min(ready, self.processes))

    def fall_back(self) -> bool:
        """Children could not be started: keep as many as there were. False when none was ready, or all were."""
        if not 0 < self.proven < self.processes:
            return False
        self.processes = self.proven
        return True
