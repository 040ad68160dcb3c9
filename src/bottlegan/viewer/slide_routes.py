"""Data for the page of slides: tiles, tables of color maps, findings, pixels, and the writing of slides."""

from io import BytesIO

import numpy as np
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from bottlegan import __version__
from bottlegan.colormap.table import Convert
from bottlegan.core.progress import Json
from bottlegan.imaging.files import Pixels
from bottlegan.viewer.gallery import list_entries
from bottlegan.viewer.session import REFERENCE, Session
from bottlegan.viewer.shown import ShownSlide
from bottlegan.viewer.tables import DOUBT, SPACING, iterate_map, sample_doubts, sample_map
from bottlegan.viewer.writing import Writing

BYTES = "application/octet-stream"


def list_routes(session: Session) -> list[Route]:
    """Return the routes for the slides of a session."""
    slides, one = SlideAnswers(session), "/api/slides/{slide:int}"
    writing = Writing(session)
    return [
        Route("/api/session", slides.tell_session),
        Route("/api/gallery", slides.tell_gallery),
        Route(one, slides.tell_slide),
        Route(f"{one}/finding", slides.tell_finding),
        Route(f"{one}/tiles/{{step:int}}/{{column:int}}/{{row:int}}", slides.send_tile),
        Route(f"{one}/prediction/{{step:int}}/{{column:int}}/{{row:int}}", slides.send_prediction),
        Route(f"{one}/table", slides.send_table),
        Route(f"{one}/doubts", slides.send_doubts),
        Route(f"{one}/picture", slides.send_picture),
        Route(f"{one}/thumbnail", slides.send_thumbnail),
        Route(f"{one}/tissue", slides.send_tissue),
        Route(f"{one}/pixel", slides.tell_pixel),
        Route(f"{one}/write", writing.begin, methods=["POST"]),
        Route("/api/jobs/{job:int}", writing.tell),
        Route("/api/jobs/{job:int}/stop", writing.stop, methods=["POST"]),
    ]


class SlideAnswers:
    """The answers to requests. Each runs in its own thread."""

    def __init__(self, session: Session) -> None:
        """Take the session to answer for."""
        self.session = session

    def tell_session(self, request: Request) -> Response:
        """Send the slides and options of the session."""
        facts: dict[str, Json] = {
            "version": __version__,
            "slides": [slide.path.name for slide in self.session.slides],
            "targets": [{"key": target.key, "label": target.label} for target in self.session.list_targets()],
            "spacing": SPACING,
            "doubt": DOUBT,
            "network": None if self.session.network is None else self.session.network.tell(),
        }
        return JSONResponse(facts)

    def tell_gallery(self, request: Request) -> Response:
        """Send the findings so far on all slides. Slides that need attention come first."""
        self.session.looked_at.set()
        return JSONResponse(list_entries(self.session.slides))

    def tell_slide(self, request: Request) -> Response:
        """Send the layout of a slide."""
        return JSONResponse(self._find(request).describe())

    def tell_finding(self, request: Request) -> Response:
        """Send the finding about a slide's stain."""
        return JSONResponse(self._find(request).finding.tell())

    def send_tile(self, request: Request) -> Response:
        """Send a tile as plain RGB bytes, without the time and loss of encoding."""
        slide, place = self._find(request), request.path_params
        try:
            levels = slide.pyramid.read(place["step"], place["column"], place["row"])
        except IndexError as error:
            raise HTTPException(404, str(error)) from None
        self.session.looked_at.set()
        return Response(levels.tobytes(), media_type=BYTES)

    def send_prediction(self, request: Request) -> Response:
        """Send a tile of the network's classes, one byte per pixel."""
        slide, place, network = self._find(request), request.path_params, self.session.network
        if network is None:
            raise HTTPException(404, "there is no network; give one with --network")
        try:
            classes = network.paint(slide.pyramid, place["step"], place["column"], place["row"])
        except IndexError as error:
            raise HTTPException(404, str(error)) from None
        return Response(classes.tobytes(), media_type=BYTES)

    def send_table(self, request: Request) -> Response:
        """Send the coarse or exact table of a map."""
        convert = self._find_map(request)
        if "exact" in request.query_params:
            return StreamingResponse(iterate_map(convert), media_type=BYTES)
        return Response(sample_map(convert), media_type=BYTES)

    def send_doubts(self, request: Request) -> Response:
        """Send the table of uncertainty and pen."""
        return Response(sample_doubts(self._find(request).normalizer(forced=True)), media_type=BYTES)

    def send_picture(self, request: Request) -> Response:
        """Send a picture of the whole slide to show before its tiles, or nothing if that takes long."""
        picture = self._find(request).draw_picture()
        return Response(status_code=204) if picture is None else _send_png(picture, compress_level=0)

    def send_thumbnail(self, request: Request) -> Response:
        """Send a small picture of the whole slide, original or mapped."""
        slide, asked = self._find(request), request.query_params
        if "to" not in asked:
            return _send_png(slide.draw_thumbnail())
        number = request.path_params["slide"]
        return _send_png(self.session.draw_after(number, asked["to"], forced="forced" in asked))

    def send_tissue(self, request: Request) -> Response:
        """Send the tissue mask."""
        return _send_png(np.where(self._find(request).mask_tissue(), 255, 0).astype(np.uint8))

    def tell_pixel(self, request: Request) -> Response:
        """Send data about one pixel."""
        asked, slide = request.query_params, self._find(request)
        try:
            x, y = int(asked["x"]), int(asked["y"])
        except (KeyError, ValueError):
            raise HTTPException(400, "give x and y, whole numbers") from None
        return JSONResponse(slide.pick(x, y, self._find_map(request) if "to" in asked else None))

    def _find(self, request: Request) -> ShownSlide:
        number = request.path_params["slide"]
        if number >= len(self.session.slides):
            raise HTTPException(404, f"there is no slide {number}")
        return self.session.slides[number]

    def _find_map(self, request: Request) -> Convert:
        self._find(request)
        asked, number = request.query_params, request.path_params["slide"]
        return self.session.find_map(number, asked.get("to", REFERENCE), forced="forced" in asked)


def _send_png(levels: Pixels, compress_level: int = 1) -> Response:
    data = BytesIO()
    Image.fromarray(levels).save(data, "PNG", compress_level=compress_level)
    return Response(data.getvalue(), media_type="image/png")
