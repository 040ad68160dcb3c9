"""Writing a whole slide in the background, like `bottlegan normalize`, in the stain that the page shows."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from bottlegan.core.errors import InputError
from bottlegan.core.progress import Progress
from bottlegan.normalize.slides.one import SlideOptions, check_names, map_slide
from bottlegan.viewer.jobs import Job
from bottlegan.viewer.session import Session


class Wish(BaseModel):
    """A request of the page."""

    model_config = ConfigDict(extra="forbid", strict=True)

    to: str
    name: str
    forced: bool = False


class Writing:
    """The slides that are being written, or were written."""

    def __init__(self, session: Session) -> None:
        """Take the session whose slides to write."""
        self.session = session
        self.jobs: list[Job] = []

    async def begin(self, request: Request) -> Response:
        """Start writing a slide."""
        try:
            wish = Wish.model_validate_json(await request.body())
        except ValidationError:
            raise HTTPException(400, "give the target stain and the name of the file") from None
        return await run_in_threadpool(self._begin, request.path_params["slide"], wish)

    def _begin(self, number: int, wish: Wish) -> Response:
        if number >= len(self.session.slides):
            raise HTTPException(404, f"there is no slide {number}")
        source = self.session.slides[number].path
        target = place(wish.name, self.session.settings.folder)
        check_names(source, target, SlideOptions())
        if any(job.state == "running" for job in self.jobs):
            raise InputError("a slide is being written already; wait for it, or stop it")
        choice = self.session.choose(wish.to, forced=wish.forced)

        def work(progress: Progress) -> str:
            result = map_slide(source, target, choice.prepare(), progress=progress)
            lost = f" {len(result.broken)} unreadable tiles are white." if result.broken else ""
            return (
                f"Wrote {target.name} to {target.parent}: {result.megapixels:.1f} MP in {result.seconds:.1f} s.{lost}"
            )

        self.jobs.append(Job(work))
        return JSONResponse({"job": len(self.jobs) - 1})

    def tell(self, request: Request) -> Response:
        """Send the progress of writing a slide."""
        return JSONResponse(self._find(request).tell())

    def stop(self, request: Request) -> Response:
        """Stop writing a slide, and remove what was written."""
        job = self._find(request)
        job.stop()
        return JSONResponse(job.tell())

    def _find(self, request: Request) -> Job:
        number = request.path_params["job"]
        if number >= len(self.jobs):
            raise HTTPException(404, f"there is no job {number}")
        return self.jobs[number]


def place(name: str, folder: Path) -> Path:
    """Return the path for a file name; refuse anything but a name, and names that exist already."""
    if not name or name != Path(name).name or name.startswith(".") or "\\" in name:
        raise InputError(f"{name or 'nothing'}: is not the name of a file; slides are written to {folder}")
    target = folder / name
    if target.exists():
        raise InputError(f"{name}: is in {folder} already; choose another name")
    return target
