"""Files and batches as they are shown."""

from quire.server.apis.batches.protocol import BatchList, BatchObject, FileList, FileObject
from quire.server.apis.descriptions import CREATED_S

FILE = FileObject(
    id="file-0123456789abcdef",
    bytes=1024,
    created_at=CREATED_S,
    expires_at=CREATED_S + 2592000,
    filename="requests.jsonl",
    purpose="batch",
)
FILES = FileList(data=(FILE,), has_more=False, first_id=FILE.id, last_id=FILE.id)
BATCH = BatchObject(
    id="batch_0123456789abcdef",
    endpoint="/v1/completions",
    input_file_id=FILE.id,
    completion_window="24h",
    created_at=CREATED_S,
    expires_at=CREATED_S + 86400,
)
BATCHES = BatchList(data=(BATCH,), has_more=False, first_id=BATCH.id, last_id=BATCH.id)
