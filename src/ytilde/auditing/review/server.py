"""The page's server: on this machine alone, for whoever has the token of its address."""

from __future__ import annotations

import json
import secrets
import shlex
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ...data import BadInput
from ..pages import digest, own_parts, template, text_of
from .log import NotSaved
from .session import SIDES, Review, number, word

MESSAGE = 4096  # bytes of a request


def application(review: Review, token: str, port: int) -> Any:
    """The page as an ASGI application (Starlette)."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    page, policy = _page(review)
    own = {f"{host}:{port}" for host in ("127.0.0.1", "localhost")}
    origins = {None} | {f"http://{host}" for host in own}  # None: no script of another page sent it

    async def guard(request: Request, call_next: Callable) -> Response:
        """Only this page, under its own address, with its token; nothing is kept by the browser."""
        given = request.url.path.partition("/")[2].partition("/")[0]
        host, origin = (request.headers.get(name) for name in ("host", "origin"))
        if host not in own or origin not in origins:
            response: Response = PlainTextResponse("Refused: not this page's address.", 403)
        elif not secrets.compare_digest(given.encode("utf-8", "replace"), token.encode()):
            text = "Refused: open the whole address that `ytilde review` printed."
            response = PlainTextResponse(text, 403)
        else:
            response = await call_next(request)
        response.headers.update(
            {
                "Content-Security-Policy": policy,
                "Cache-Control": "no-store",
                "Referrer-Policy": "no-referrer",
                "X-Content-Type-Options": "nosniff",
                "Cross-Origin-Resource-Policy": "same-origin",
            }
        )
        return response

    async def show(request: Request) -> Response:
        return HTMLResponse(page)

    async def picture(request: Request) -> Response:
        digits = request.path_params["row"]
        if len(digits) > len(str(2**53)):
            return PlainTextResponse("The number of a picture is shorter than that.", 400)
        size = request.path_params.get("size", "page")
        known = digits.isascii() and digits.isdecimal() and int(digits) in review.visible
        if not known or review.pictures is None or size not in SIDES:
            return PlainTextResponse("There is no such picture.", 404)
        content, kind = await run_in_threadpool(review.picture, int(digits), size)
        return Response(content, media_type=f"image/{kind}")

    async def ask(request: Request) -> Response:
        """Everything else is a POST of a small JSON object: what the page does by name."""
        verbs: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "overview": lambda asked: review.overview(),
            "pairs": lambda asked: review.pairs(),
            "next": lambda asked: review.next(
                word(asked, "tab"), word(asked, "kind"), review.pair(asked)
            ),
            "at": lambda asked: review.at(number(asked, "position"), review.pair(asked)),
            "similar": lambda asked: review.similar(number(asked, "row")),
            "decide": review.decide,
            "accept-pair": review.accept_pair,
            "undo": review.undo,
        }
        verb = verbs.get(request.path_params["verb"])
        try:
            asked = json.loads(await _body(request))
            if verb is None or not isinstance(asked, dict):
                raise BadInput("there is no such question")
            return JSONResponse(await run_in_threadpool(verb, asked))
        except NotSaved as error:
            return JSONResponse({"error": str(error)}, 507)
        except (BadInput, ValueError, RecursionError) as error:
            return JSONResponse({"error": str(error)}, 400)

    routes = [
        Route("/{token}/", show),
        Route("/{token}/picture/{row}", picture),
        Route("/{token}/picture/{row}/{size}", picture),
        Route("/{token}/{verb}", ask, methods=["POST"]),
    ]
    return Starlette(routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=guard)])


async def _body(request: Any) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MESSAGE:
            raise BadInput("the request is too long")
    return body


def _page(review: Review) -> tuple[str, str]:
    """The page, and the policy that lets it run its own script and load its own pictures alone."""
    own = own_parts("review")
    run = text_of(review.run, 200)
    page = template("review/review.html").render(run=run, quoted=shlex.quote(run), **own._asdict())
    policy = (
        f"default-src 'none'; script-src {digest(own.script)}; style-src {digest(own.style)}; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return page, policy


def serve(review: Review, port: int, say: Callable[[str], None]) -> None:
    """Serve the page on this machine until Ctrl-C; `say` gets its address."""
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise BadInput(
            'the review page needs starlette and uvicorn: pip install "ytilde[app]"'
        ) from error
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise BadInput(
                f"port {port} is taken ({error.strerror}); use another --port"
            ) from error
        listener.listen()  # whoever opens the address at once waits for the answer
        port = listener.getsockname()[1]
        token = secrets.token_urlsafe(24)
        config = uvicorn.Config(
            application(review, token, port), log_level="warning", access_log=False,
            server_header=False, timeout_graceful_shutdown=1, lifespan="off", ws="none",
        )  # fmt: skip
        say(f"http://127.0.0.1:{port}/{token}/")
        with suppress(KeyboardInterrupt):  # uvicorn closes in order, then passes Ctrl-C on
            uvicorn.Server(config).run(sockets=[listener])
