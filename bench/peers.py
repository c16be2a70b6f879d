"""Measures what PyTorch and OpenBLAS make of the figures of `go run ./bench`.

    python bench/peers.py [--only REGEXP] [--threads N] [--repeat N] FILE

writes one JSON object a line: name, value, unit, threads and peer, the peer's
best form of each. It needs torch (with a C++ compiler for its compiled forms)
and numpy, whose matrix product is OpenBLAS; what is not installed is left out
with a word on stderr. `go run ./bench -peers FILE` prints both with the ratios.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

# PyTorch's best settings on few cores; they must be set before it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

OPERATOR = [(2, 4096, 25, 512), (1, 1023, 32, 512), (1, 2048, 64, 2048), (1, 256, 127, 6144)]
MATMUL = [(512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (1024, 2048, 512),
          (3072, 1152, 384), (3072, 1536, 384), (3072, 384, 1536)]
EXTRA = [(1, 1, 1), (7, 5, 3), (127, 129, 131), (2048, 1, 2048), (1, 2048, 2048)]
TRANSPOSED = ["nt", "tn", "tt"]
BATCHED = (72, 256, 256, 64)
GPT = dict(layers=6, dim=384, heads=6, context=256, batch=12, vocab=96)


def median_seconds(run, repeat):
    run()
    run()
    times = []
    begin = time.perf_counter()
    while len(times) < repeat or (len(times) < 5 * repeat and time.perf_counter() - begin < 0.5):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
        if time.perf_counter() - begin > 60 and len(times) >= 3:
            break
    return statistics.median(times)


def shape_name(shape):
    return "x".join(map(str, shape))


class Figures:
    def __init__(self, options):
        self.options = options
        self.out = open(options.file, "w")

    def wants(self, name):
        return re.search(self.options.only, name) is not None

    def write(self, name, value, unit, peer, threads=None):
        figure = dict(name=name, value=value, unit=unit, threads=threads or self.options.threads, peer=peer)
        print(json.dumps(figure), file=self.out, flush=True)
        print(f"{name:60s} {value:12.4g} {unit:9s} {peer}", flush=True)


def openblas_matmul(shape, form, batch, repeat):
    """GFLOP/s of numpy's float32 product in this process."""
    import numpy as np
    m, n, k = shape
    rng = np.random.default_rng(1)
    make = lambda r, c, t: (rng.standard_normal(batch + (c, r), dtype=np.float32).swapaxes(-1, -2) if t
                            else rng.standard_normal(batch + (r, c), dtype=np.float32))
    a, b = make(m, k, form[0] == "t"), make(k, n, form[1] == "t")
    out = np.empty(batch + (m, n), np.float32)
    calls = max(1, int(2e5 // (m * n * k + 1)))

    def run():
        for _ in range(calls):
            np.matmul(a, b, out=out)
    count = batch[0] if batch else 1
    return 2 * m * n * k * count * calls / median_seconds(run, repeat) / 1e9


# A product's name: (m,n,k) of (m,k) times (k,n), with the form where an operand is transposed.
def matmul_cases():
    for shape in MATMUL:
        yield "matmul/{}/" + shape_name(shape), shape, "nn", ()
    for form in TRANSPOSED:
        yield "matmul/{}/1024x1024x1024/" + form, (1024, 1024, 1024), form, ()
    yield "matmul/{}/" + shape_name(BATCHED), BATCHED[1:], "nn", (BATCHED[0],)
    for shape in EXTRA:
        yield "matmul/{}/" + shape_name(shape), shape, "nn", ()


def openblas(figures, arguments):
    """Each kernel of OpenBLAS in a process of its own; the best is kept."""
    try:
        import numpy
    except ImportError:
        print("numpy is not installed: no figures of OpenBLAS", file=sys.stderr)
        return
    best = {}
    for core in ["", "SKYLAKEX", "COOPERLAKE", "SAPPHIRERAPIDS", "ZEN", "HASWELL"]:
        for threads in sorted({1, figures.options.threads}):
            environment = dict(os.environ, OPENBLAS_NUM_THREADS=str(threads))
            if core:
                environment["OPENBLAS_CORETYPE"] = core
            call = [sys.executable, __file__, "--openblas", *arguments]
            done = subprocess.run(call, env=environment, capture_output=True, text=True)
            if done.returncode:
                continue
            for line in done.stdout.splitlines():
                name, value = line.split()
                if value_of := float(value):
                    if value_of > best.get((name, threads), (0, ""))[0]:
                        best[name, threads] = (value_of, f"OpenBLAS of numpy {numpy.__version__} {core or 'default'}")
    for (name, threads), (value, peer) in best.items():
        figures.write(name if threads == figures.options.threads else name + "/1thread", value, "GFLOP/s", peer, threads)


def torch_matmul(figures):
    import torch
    for dtype, name in [(torch.float32, "fp32"), (torch.bfloat16, "bf16"), (torch.bfloat16, "bf16_fast")]:
        for pattern, (m, n, k), form, batch in matmul_cases():
            full = pattern.format(name)
            if not figures.wants(full) or (name == "fp32" and not figures.wants(full)):
                continue
            make = lambda r, c, t: (torch.randn(batch + (c, r)).to(dtype).transpose(-1, -2) if t
                                    else torch.randn(batch + (r, c)).to(dtype))
            a, b = make(m, k, form[0] == "t"), make(k, n, form[1] == "t")
            out = torch.empty(batch + (m, n), dtype=dtype)
            calls = max(1, int(2e5 // (m * n * k + 1)))

            def run():
                for _ in range(calls):
                    torch.matmul(a, b, out=out)
            seconds = median_seconds(run, figures.options.repeat)
            figures.write(full, 2 * m * n * k * (batch[0] if batch else 1) * calls / seconds / 1e9, "GFLOP/s", "PyTorch")


def stacked(blocks, partial, w, gamma, scale, eps):
    """The definition written plainly."""
    import torch
    v = torch.stack(blocks + [partial], dim=2).float()
    k = v * torch.rsqrt((v * v).mean(-1, keepdim=True) + eps) * gamma.float()
    alpha = torch.softmax(scale * (k * w.float()).sum(-1), dim=-1)
    return (alpha.unsqueeze(-1) * v).sum(2).to(blocks[0].dtype)


def loop(blocks, partial, w, gamma, scale, eps):
    """One dot product and one square sum a source, and no stack."""
    import torch
    u = scale * gamma.float() * w.float()
    sources = blocks + [partial]
    logits = []
    for v in sources:
        x = v.float()
        logits.append((x * u).sum(-1) * torch.rsqrt((x * x).mean(-1) + eps))
    alpha = torch.softmax(torch.stack(logits, -1), dim=-1)
    h = 0
    for i, v in enumerate(sources):
        h = h + alpha[..., i:i + 1] * v.float()
    return h.to(blocks[0].dtype)


def torch_operator(figures):
    import torch
    for dtype, name in [(torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.float32, "fp32")]:
        for shape in OPERATOR:
            forward_name = f"blockattnres/forward/{name}/{shape_name(shape)}"
            both_name = f"blockattnres/forward_backward/{name}/{shape_name(shape)}"
            if not figures.wants(forward_name) and not figures.wants(both_name):
                continue
            b, t, n, d = shape
            if name == "fp32" and b * t * n * d * 4 > 2 << 30:
                continue
            torch.manual_seed(0)
            values = [torch.randn(b, t, d).to(dtype).requires_grad_() for _ in range(n + 1)]
            w = torch.randn(d).mul(d ** -0.5).to(dtype).requires_grad_()
            gamma = torch.ones(d).to(dtype).requires_grad_()
            grad = torch.randn(b, t, d).to(dtype)
            best = {}
            forms = [("eager loop", loop, False), ("compiled loop", loop, True), ("compiled stacked", stacked, True)]
            if not figures.options.brief:
                forms.insert(0, ("eager stacked", stacked, False))
            for form, function, compiled in forms:
                try:
                    torch._dynamo.reset()
                    call = torch.compile(function, fullgraph=True) if compiled else function

                    def forward():
                        with torch.no_grad():
                            return call(values[:-1], values[-1], w, gamma, 0.7, 1e-6)

                    def both():
                        for v in values + [w, gamma]:
                            v.grad = None
                        call(values[:-1], values[-1], w, gamma, 0.7, 1e-6).backward(grad)
                    repeat = figures.options.repeat if compiled else 3
                    for key, run in [(forward_name, forward), (both_name, both)]:
                        if figures.wants(key):
                            ms = 1e3 * median_seconds(run, repeat)
                            if "eager stacked" == form:
                                figures.write(key, ms, "ms", "PyTorch eager")
                            elif ms < best.get(key, (float("inf"),))[0]:
                                best[key] = (ms, "PyTorch " + form)
                except Exception as problem:
                    print(f"{forward_name}, {form}: {problem}", file=sys.stderr)
            for key, (ms, form) in best.items():
                figures.write(key, ms, "ms", form)


def torch_parts(figures):
    """What a step does beside matrix products, forward and backward, eager."""
    import torch
    from torch.nn import functional as F
    rows, d, vocab = GPT["batch"] * GPT["context"], GPT["dim"], 8192
    wide, logits = (rows, 4 * d), (2048, vocab)
    heads = (GPT["batch"], GPT["heads"], GPT["context"], d // GPT["heads"])
    ids, targets = torch.randint(vocab, (rows,)), torch.randint(vocab, (logits[0],))
    angle = torch.outer(torch.arange(heads[2]), 10000.0 ** (-torch.arange(0, heads[3], 2) / heads[3]))
    cos, sin = angle.cos(), angle.sin()

    def rotary(x):
        a, b = x.chunk(2, -1)
        c, s = cos.to(x.dtype), sin.to(x.dtype)
        return torch.cat([a * c - b * s, b * c + a * s], -1)
    parts = {
        "add": ([wide, wide], lambda x, y: x + y),
        "mul": ([wide, wide], lambda x, y: x * y),
        "gelu_tanh": ([wide], lambda x: F.gelu(x, approximate="tanh")),
        "gelu": ([wide], F.gelu),
        "silu": ([wide], F.silu),
        "sum_rows": ([wide], lambda x: x.sum(0)),
        "sum_columns": ([wide], lambda x: x.sum(1)),
        "layer_norm": ([(rows, d), (d,), (d,)], lambda x, w, b: F.layer_norm(x, (d,), w, b)),
        "rms_norm": ([(rows, d), (d,)], lambda x, w: F.rms_norm(x, (d,), w, 1e-5)),
        "rotary": ([heads], rotary),
        "attention": ([heads] * 3, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
        "embedding": ([(vocab, d)], lambda w: F.embedding(ids, w)),
        "softmax": ([logits], lambda x: torch.softmax(x, -1)),
        "log_softmax": ([logits], lambda x: torch.log_softmax(x, -1)),
        "cross_entropy": ([logits], lambda x: F.cross_entropy(x, targets)),
    }
    for dtype, suffix in [(torch.float32, "fp32"), (torch.bfloat16, "bf16")]:
        for part, (shapes, call) in parts.items():
            name = f"part/{part}/{suffix}"
            if not figures.wants(name):
                continue
            best = (float("inf"), "")
            for form in ["eager", "compiled"]:
                try:
                    torch._dynamo.reset()
                    function = torch.compile(call) if form == "compiled" else call
                    inputs = [torch.randn(s).to(dtype).requires_grad_() for s in shapes]
                    grad = torch.randn(call(*inputs).shape).to(dtype)

                    def step():
                        for x in inputs:
                            x.grad = None
                        function(*inputs).backward(grad)
                    ms = 1e3 * median_seconds(step, figures.options.repeat)
                    if ms < best[0]:
                        best = (ms, "PyTorch " + form)
                except Exception as problem:
                    print(f"{name}, {form}: {problem}", file=sys.stderr)
            if best[1]:
                figures.write(name, best[0], "ms", best[1])
    if figures.wants("part/adamw/fp32"):
        weight = torch.rand(1024, 10240).requires_grad_()
        weight.grad = torch.rand_like(weight)
        optimizer = torch.optim.AdamW([weight], lr=1e-6, fused=True)
        figures.write("part/adamw/fp32", 1e3 * median_seconds(optimizer.step, figures.options.repeat), "ms", "PyTorch fused")


def torch_step(figures):
    import torch
    from torch import nn
    from torch.nn import functional as F
    c = GPT

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            d = c["dim"]
            self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, x):
            b, t, d = x.shape
            q, k, v = (y.view(b, t, c["heads"], -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(d, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class GPT2(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(c["vocab"], c["dim"])
            self.position = nn.Embedding(c["context"], c["dim"])
            self.layers = nn.ModuleList(Layer() for _ in range(c["layers"]))
            self.norm = nn.LayerNorm(c["dim"])

        def forward(self, ids, targets):
            x = self.embed(ids) + self.position(torch.arange(ids.shape[1]))
            for layer in self.layers:
                x = layer(x)
            logits = F.linear(self.norm(x), self.embed.weight)
            return F.cross_entropy(logits.view(-1, c["vocab"]).float(), targets.view(-1))

    for name, autocast in [("train_step/fp32", False), ("train_step/bf16", True)]:
        if not figures.wants(name):
            continue
        best = (0, "")
        for form in ["eager", "compiled", "compiled max-autotune"]:
            try:
                torch.manual_seed(0)
                torch._dynamo.reset()
                model = GPT2()
                optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
                ids = torch.randint(c["vocab"], (c["batch"], c["context"]))
                targets = torch.randint(c["vocab"], (c["batch"], c["context"]))
                call = {"eager": lambda: model, "compiled": lambda: torch.compile(model),
                        "compiled max-autotune": lambda: torch.compile(model, mode="max-autotune-no-cudagraphs")}[form]()

                def step():
                    optimizer.zero_grad(set_to_none=True)
                    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                        loss = call(ids, targets)
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                rate = ids.numel() / median_seconds(step, figures.options.repeat)
                print(f"{name} {form}: {rate:.0f} tokens/s", file=sys.stderr)
                if rate > best[0]:
                    best = (rate, "PyTorch " + form + (" autocast" if autocast else ""))
            except Exception as problem:
                print(f"{name}, {form}: {problem}", file=sys.stderr)
        if best[0]:
            figures.write(name, best[0], "tokens/s", best[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="a regular expression that selects figures by name")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeat", type=int, default=10, help="the least number of runs of a figure")
    parser.add_argument("--brief", action="store_true", help="leave out PyTorch's plain eager form of the operator")
    parser.add_argument("--openblas", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("file", nargs="?", default="peers.json")
    options = parser.parse_args()
    if options.openblas:
        for pattern, shape, form, batch in matmul_cases():
            name = pattern.format("fp32")
            if re.search(options.only, name) or re.search(options.only, name + "/1thread"):
                print(name, openblas_matmul(shape, form, batch, options.repeat))
        return
    figures = Figures(options)
    if any(figures.wants(p.format("fp32")) for p, _, _, _ in matmul_cases()):
        openblas(figures, ["--only", options.only, "--repeat", str(options.repeat)])
    try:
        import torch
    except ImportError:
        print("torch is not installed: no figures of PyTorch", file=sys.stderr)
        return
    torch.set_num_threads(options.threads)
    torch_matmul(figures)
    torch_operator(figures)
    torch_parts(figures)
    torch_step(figures)


if __name__ == "__main__":
    main()
