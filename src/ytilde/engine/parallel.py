"""One model, many processes: each sees the global batch, and computes its share of the rows.

All processes draw the same rows, views and noise. What couples the rows of a batch (ranks,
quantiles, partners, pairs) and the state of each example is computed over the global batch, alike
everywhere, and no method knows. What costs time is shared: a module that its parent names in
`row_parallel` computes this process's rows only, and its outputs are gathered. The gather's
derivative and averaged gradients make that the gradient of one process.
docs/decisions/0008-many-gpus.md
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from .. import files
from ..errors import BadInput

_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Team:
    """The processes that train one model; a team of one needs no communication.

    direct: GPU tensors are gathered where they are; gloo cannot, so there they go by the CPU.
    """

    def __init__(self, rank: int = 0, size: int = 1, direct: bool = False) -> None:
        self.rank, self.size, self.direct = rank, size, direct
        self.together = size > 1  # False while the leader works alone

    def my_shard(self, x: Tensor) -> Tensor:
        """This process's rows of [n, ...]; all of them where the shares would not be equal."""
        if not self.together or len(x) % self.size:
            return x
        return x.tensor_split(self.size)[self.rank]

    def gather(self, x: Tensor) -> Tensor:
        """The rows of all processes, [n, ...] -> [size * n, ...]; gradients flow back."""
        return _Gather.apply(x, self) if self.together else x  # type: ignore[no-untyped-call]

    def average(self, params: Iterable[Tensor]) -> None:
        """Every gradient becomes its mean over the processes."""
        grads = [p.grad for p in params if p.grad is not None]
        if not self.together or not grads:
            return
        flat = torch.cat([grad.float().flatten() for grad in grads])
        dist.all_reduce(flat)
        parts = (flat / self.size).split([grad.numel() for grad in grads])
        for grad, part in zip(grads, parts, strict=True):
            grad.copy_(part.view(grad.shape))

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """The leader's values, in place: kernels that add in any order leave no drift."""
        for tensor in tensors if self.together else ():
            value = tensor.detach().contiguous()
            dist.broadcast(_bytes(value), 0)
            tensor.detach().copy_(value)

    def broadcast_rows(self, rows: Tensor) -> Tensor:
        """The leader's version of a tensor that may differ in length, such as chosen rows."""
        if not self.together:
            return rows
        shape = torch.tensor([rows.dim(), *rows.shape, *[0] * (8 - rows.dim())])
        self.broadcast_([shape])
        count, *sizes = shape.tolist()
        value = rows if self.rank == 0 else rows.new_empty(sizes[:count])
        self.broadcast_([value])
        return value

    def decide(self, yes: bool) -> bool:
        """The leader's answer: others may see a file a moment earlier or later."""
        answer = torch.tensor(int(yes))
        self.broadcast_([answer])
        return bool(answer)

    def wait(self) -> None:
        """Nobody goes on before all are here: who leaves early breaks what others still use."""
        if self.together:
            dist.barrier()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """For the leader: work that the others do not take part in."""
        was, self.together = self.together, False
        try:
            yield
        finally:
            self.together = was

    @contextmanager
    def sharing(self, method: nn.Module, device: torch.device) -> Iterator[None]:
        """All start from the leader's state, and share what modules name in `row_parallel`."""
        self.broadcast_(method.state_dict().values())
        parts = heavy_modules(method) if self.together else []
        with ExitStack() as stack:
            for module in parts:
                has_norm = any(isinstance(m, _BATCH_NORM) for m in module.modules())
                if has_norm and device.type == "cpu":
                    continue  # SyncBatchNorm is for GPUs: here every process computes all rows
                if has_norm:
                    nn.SyncBatchNorm.convert_sync_batchnorm(module)
                share = _Share(self)
                stack.callback(module.register_forward_pre_hook(share.before).remove)
                stack.callback(module.register_forward_hook(share.after).remove)
            yield


def heavy_modules(method: nn.Module) -> list[nn.Module]:
    """The modules that their parents name in `row_parallel`."""
    return [getattr(p, name) for p in method.modules() for name in _row_parallel(p)]


def _row_parallel(module: nn.Module) -> tuple[str, ...]:
    """What the module, or else the nearest of its classes, names; `by_rows` is the old word."""
    for holder in (module, *type(module).__mro__):
        for name in ("row_parallel", "by_rows"):
            if name in vars(holder):
                return vars(holder)[name]
    return ()


class _Gather(torch.autograd.Function):
    """all_gather along the rows; its adjoint sums the processes' gradients of this share."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, team: Team) -> Tensor:
        ctx.team = team
        part = x.contiguous() if team.direct else x.contiguous().cpu()
        out = part.new_empty(team.size * len(part), *part.shape[1:])
        dist.all_gather(list(_bytes(out).chunk(team.size)), _bytes(part))
        return out.to(x.device)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].float().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return ctx.team.my_shard(total).to(grads[0].dtype), None


def _bytes(x: Tensor) -> Tensor:
    """A view that every backend can move, whatever the type of the numbers."""
    return x.view(-1).view(torch.uint8)


class _Share:
    """The hooks of one module: it gets this process's rows and returns everybody's."""

    def __init__(self, team: Team) -> None:
        self.team, self.split = team, False
        self.random = ExitStack()

    def before(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        self.split = self.team.together and len(args[0]) % self.team.size == 0
        if self.split and module.training and any(map(_drops, module.modules())):
            # other masks in other shares, and the same global state everywhere afterwards
            self.random.enter_context(_reseeded(args[0].device, self.team.rank))
        return tuple(self.team.my_shard(x) for x in args) if self.split else args

    def after(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        self.random.close()
        return self.team.gather(output) if self.split else output


def _drops(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0


@contextmanager
def _reseeded(device: torch.device, rank: int) -> Iterator[None]:
    """The global random state, seeded from itself and the rank; afterwards as if one draw."""
    seed = int(torch.randint(2**62, ())) + rank
    generator = torch.default_generator
    if device.type == "cuda":
        generator = torch.cuda.default_generators[device.index or 0]
    state = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(state)


# ---- who is in the team -------------------------------------------------------------------------

_TEAM = Team()


def team() -> Team:
    """The team that this process has joined; of one, if none."""
    return _TEAM


files.may_write = lambda: _TEAM.rank == 0  # of the processes that train one model the leader


def join() -> Team:
    """Join the team that torchrun has started this process for, if it has."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size > 1 and _TEAM.size == 1:
        local, here = (int(os.environ[name]) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
        most = max(torch.cuda.device_count(), os.cpu_count() or 1)
        if here > most and local:
            raise SystemExit(2)  # one of them says it
        if here > most:
            raise BadInput(f"torchrun started {here} processes, but this machine has {most} CPUs")
        store, rank, _ = next(dist.rendezvous("env://"))
        # torchrun keeps its store when it starts all again: there the dead ones' addresses stand
        store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        _enter(store, rank, size, local, here)
    return _TEAM


def leave() -> None:
    global _TEAM
    if _TEAM.size > 1:
        dist.destroy_process_group()
    _TEAM = Team()


def _enter(store: dist.Store, rank: int, size: int, local: int, here: int) -> None:
    """local: the number of this process among the `here` ones of this machine."""
    global _TEAM
    cards = torch.cuda.device_count()
    if cards:
        torch.cuda.set_device(local % cards)
    direct = cards >= here  # NCCL wants a GPU for each
    backend = "cpu:gloo,cuda:nccl" if direct else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    _TEAM = Team(rank, size, direct)


def check_devices(size: int, device: torch.device) -> None:
    """Refuse more processes than there are GPUs, or CPUs where training runs on these: more only
    wait for each other, and hundreds bring a machine down."""
    if size < 1:
        raise BadInput(f"devices must be at least 1, not {size}")
    gpu = device.type == "cuda"
    most = torch.cuda.device_count() if gpu else os.cpu_count() or 1
    if size > most:
        has = f"{most} {'GPU' if gpu else 'CPU'}{'s' * (most > 1)}"
        raise BadInput(f"devices is {size}, but this machine has {has}; ask for {most} at most")


@contextmanager
def spawn_workers(size: int, work: Callable[..., Any], *args: Any) -> Iterator[None]:
    """This process becomes the leader of `size`; the other ones run work(*args) meanwhile.

    They are spawned: a script that gets here must be guarded by `if __name__ == "__main__":`.
    """
    if size == 1:
        yield
        return
    if _TEAM.size > 1:
        raise BadInput("this process is part of a team already; use either torchrun or devices=")
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "store")
        threads = torch.get_num_threads()
        spawn = mp.get_context("spawn")
        others = [
            spawn.Process(
                target=_member, args=(meeting, rank, size, threads, work, args), daemon=True
            )
            for rank in range(1, size)
        ]
        for process in others:
            process.start()
        try:
            _enter(dist.FileStore(meeting, size), 0, size, 0, size)
            yield
        finally:
            leave()
            for process in others:
                process.join(5)
                process.terminate()


def _member(
    meeting: str, rank: int, size: int, threads: int, work: Callable[..., Any], args: Any
) -> None:
    torch.set_num_threads(threads)
    _enter(dist.FileStore(meeting, size), rank, size, rank, size)
    try:
        work(*args)
    except (BadInput, KeyboardInterrupt):
        pass  # the leader says it
    finally:
        leave()
