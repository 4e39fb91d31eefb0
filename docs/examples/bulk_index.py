"""A batch task: documents are sent one by one and indexed by the hundred. Needs horsies-client and horsies-worker.

    HORSIES_DATABASE_URL=postgresql://... horsies worker bulk_index:app --processes 2
    HORSIES_DATABASE_URL=postgresql://... python bulk_index.py

The search engine refuses every hundredth document. Only these fail; the others of their request are indexed.
"""

import time

from pydantic import BaseModel

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult, gather


class Document(BaseModel):
    number: int
    text: str


class SearchEngine:
    """Stands for a client whose request costs the same for one document and for a hundred."""

    def bulk(self, documents: list[Document]) -> list[str | None]:
        time.sleep(0.02)
        return [None if document.number % 100 == 99 else f"doc-{document.number}" for document in documents]


app = Horsies(AppConfig(PostgresConfig()))
engine = SearchEngine()


@app.batch_task("index_document", max_size=100, max_wait_ms=50)
def index_document(documents: list[Document]) -> list[TaskResult[str, TaskError]]:
    print(f"indexing {len(documents)} documents", flush=True)
    return [
        TaskResult(err=TaskError("REFUSED", f"document {document.number} is refused"))
        if key is None
        else TaskResult(ok=key)
        for document, key in zip(documents, engine.bulk(documents), strict=True)
    ]


if __name__ == "__main__":
    handles = index_document.send_many(
        [index_document.call(Document(number=number, text=f"text {number}")) for number in range(1_000)]
    )
    results = gather(handles, timeout_ms=60_000)
    refused = [at for at, result in enumerate(results) if result.is_err()]
    print(f"{len(results) - len(refused)} documents indexed, refused: {refused[:3]} and {len(refused) - 3} more")
