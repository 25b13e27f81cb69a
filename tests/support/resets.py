"""Scripts that overwrite in each step what they keep, before they read it; and, as controls, such that do not always.

Each is (before the loop, inside of it) of `carried_state.SCRIPT`.
"""

CLASS = "class N:\n    aux = []\n"
FILL = "N.aux.append(float(step.number)); n = sum(N.aux) / 99"
MASK = (
    "\ndef mask(k, device):\n    if (k, device) not in h: h[k, device] = torch.{}(k)\n    return h[k, device]"
)
COLLATE = (
    "class C:\n    def __init__(self): self.buf = torch.zeros(4, 4)\n    def __call__(self, items):\n        {}\n"
    "        return {}, torch.stack([q for _, q in items])\n"
    "loader = samebits.data.DataLoader(loader.dataset, batch_size=4, shuffle=True, collate_fn=C())"
)
VARIABLE = "import contextvars\nh = contextvars.ContextVar('h', default=0)"
STREAM = "import io\nh = io.BytesIO({})"
ENVIRON = "os.environ['STEP'] = '0'"

RESET = {
    "a list in a class, cleared": (CLASS, f"N.aux.clear(); {FILL}"),
    "a list in a class that forward fills": (
        "class N(nn.Module):\n    aux = []\n    def __init__(self): super().__init__(); self.l = nn.Linear(4, 4)\n"
        "    def forward(self, z): h = self.l(z); N.aux.append(h.mean()); return h\nmodel.insert(0, N())",
        "N.aux.clear(); model(a); n = torch.stack(N.aux).sum().item()",
    ),
    "a list in a class, assigned": (CLASS, f"N.aux = []; {FILL}"),
    "a list that a class method clears": (
        f"{CLASS}    @classmethod\n    def clear(cls): cls.aux.clear()\n",
        f"N.clear(); {FILL}",
    ),
    "a memo with a device in its key": (
        f"h = {{}}{MASK.format('ones')}",
        "n = mask(1 + step.number % 4, a.device).sum().item()",
    ),
    "an array that numpy fills": (
        "h = np.zeros((4, 4), np.float32)",
        "np.multiply(a.numpy(), 2, out=h); n = float(h.sum())",
    ),
    "a tensor that torch fills": ("h = torch.zeros(4, 4)", "torch.mul(a, 2, out=h); n = h.sum().item()"),
    "a tensor that is copied to": ("h = torch.zeros(4, 4)", "h.copy_(a); n = h.sum().item()"),
    "an array of which all is assigned": (
        "h = np.zeros((4, 4), np.float32)",
        "h[:] = a.numpy(); n = float(h.sum())",
    ),
    "noise drawn in place": ("h = torch.zeros(4, 4)", "h.normal_(); n = h.sum().item()"),
    "a buffer of the collate function": (
        COLLATE.format("torch.stack([p for p, _ in items], out=self.buf)", "self.buf.clone()"),
        "",
    ),
    "a default argument, cleared": (
        "def h(v, out=[]):\n    out.clear(); out.extend(v); return out",
        "n = h([float(step.number)])[0] / 99",
    ),
    "generators seeded in each step": (
        "g = torch.Generator()\nr = np.random.RandomState()",
        "g.manual_seed(step.number); r.seed(step.number); n = torch.rand((), generator=g).item() + r.rand()",
    ),
    "an environment variable": (
        "",
        "os.environ['STEP'] = str(step.number); n = int(os.environ['STEP']) / 99",
    ),
    "a context variable": (VARIABLE, "h.set(step.number); n = h.get() / 99"),
    "a file in memory that is rewritten": (
        STREAM.format(""),
        "h.seek(0); h.truncate(); torch.save(a, h); n = len(h.getvalue()) % 7",
    ),
    "a dropout from a step on": ("", "if step.number >= 5: model[2].p = 0.5"),
    "an attribute called as the step's": (
        "class H: pass\nh = H()\nh.number = 0",
        "h.number = step.number; n = h.number / 99",
    ),
}

SOMETIMES = {
    "a list in a class, cleared in every other step": (
        CLASS,
        f"\n        if step.number % 2: N.aux.clear()\n        {FILL}",
    ),
    "a list in a class, read first": (
        CLASS,
        "n = sum(N.aux) / 99; N.aux.clear(); N.aux.append(float(step.number))",
    ),
    "a list in a class, assigned in every other step": (
        CLASS,
        f"\n        if step.number % 2: N.aux = []\n        {FILL}",
    ),
    "a list that a class method clears in every other step": (
        f"{CLASS}    @classmethod\n    def clear(cls, k):\n        if k % 2: cls.aux.clear()\n",
        f"N.clear(step.number); {FILL}",
    ),
    "a list that a function would clear, were it called": (
        CLASS,
        f"\n        def reset(): N.aux.clear()\n        {FILL}",
    ),
    "a list with two names": (
        f"{CLASS}m = N.aux",
        "n = sum(m) / 99; N.aux.clear(); N.aux.append(float(step.number))",
    ),
    "a list that an object has, too": (
        f"{CLASS}class K: pass\nk = K()\nk.seen = N.aux",
        "n = sum(k.seen) / 99; N.aux.clear(); N.aux.append(float(step.number))",
    ),
    "two objects under one name": (
        "class H: pass\ng, h = H(), H()\ng.buf = torch.zeros(4); h.buf = torch.zeros(4)",
        "g.buf.zero_(); h.buf += 1; n = h.buf.sum().item() / 99",
    ),
    "an object that is made, and another that counts": (
        "class M:\n    def __init__(self): self.s = 0.0\nm = M()",
        "M(); m.s += 1; n = m.s",
    ),
    "a number that a function resets in every other step": (
        "class H: pass\nh = H()\nh.k = 0\ndef reset(number):\n    if number % 2: h.k = 0",
        "reset(step.number); h.k += 1; n = h.k",
    ),
    "a memo of what was drawn": (
        f"h = {{}}{MASK.format('rand')}",
        "n = mask(1 + step.number % 4, a.device).sum().item()",
    ),
    "a memo whose entries change": (
        f"h = {{}}{MASK.format('ones')}".replace("    return", "    h[k, device] += 1\n    return"),
        "n = mask(1 + step.number % 4, a.device).sum().item() / 99",
    ),
    "an array that numpy reads and fills": (
        "h = np.ones((4, 4), np.float32)",
        "np.add(h, a.numpy(), out=h); n = float(h.sum())",
    ),
    "an array that numpy fills in part": (
        "h = np.zeros((4, 4), np.float32)",
        "np.multiply(a.numpy(), 2, out=h, where=a.numpy() > 0); n = float(h.sum())",
    ),
    "an output of a function that adds": (
        "class F:\n    @staticmethod\n    def add(v, out): out += v\nh = torch.zeros(4, 4)",
        "F.add(a, out=h); n = h.sum().item()",
    ),
    "a tensor that is copied from itself": (
        "h = torch.zeros(4, 4)",
        "h.copy_(h * 0.5 + a); n = h.sum().item()",
    ),
    "a ring of a tensor": (
        "h = torch.zeros(4)",
        "i = step.number % 4; h[i] = step.number; n = h.sum().item() / 99",
    ),
    "a ring of an array": (
        "h = np.zeros(4)",
        "i = step.number % 4; h[i] = step.number; n = h.sum().item() / 99",
    ),
    "an array of which a part is assigned": (
        "h = np.zeros(4)",
        "k = step.number % 4; h[:k] = step.number; n = h.sum().item() / 99",
    ),
    "a buffer of the collate function, filled in part": (
        COLLATE.format(
            "self.buf[0].copy_(items[0][0])", "torch.stack([p for p, _ in items]) + self.buf.sum()"
        ),
        "",
    ),
    "an average in the collate function": (
        COLLATE.format(
            "self.buf.mul_(0.5); self.buf.add_(items[0][0])", "torch.stack([p for p, _ in items]) + self.buf"
        ),
        "",
    ),
    "a default argument, cleared when it is long": (
        "def h(v, out=[]):\n    out.extend(v); k = sum(out)\n    if len(out) > 3: out.clear()\n    return k",
        "n = h([float(step.number)]) / 99",
    ),
    "a generator seeded in every fourth step": (
        "g = torch.Generator()",
        "\n        if step.number % 4 == 0: g.manual_seed(step.number)\n        n = torch.rand((), generator=g).item()",
    ),
    "a generator seeded from its seed": (
        "g = torch.Generator()",
        "g.manual_seed(g.initial_seed() + 1); n = torch.rand((), generator=g).item()",
    ),
    "a generator that draws before it is seeded": (
        "g = torch.Generator()",
        "n = torch.rand((), generator=g).item(); g.manual_seed(step.number)",
    ),
    "an environment variable, set in every other step": (
        ENVIRON,
        "\n        if step.number % 2: os.environ['STEP'] = str(step.number)\n        n = int(os.environ['STEP']) / 99",
    ),
    "an environment variable, read first": (
        ENVIRON,
        "n = int(os.getenv('STEP')) / 99; os.environ['STEP'] = str(step.number)",
    ),
    "an environment variable beside one that is set": (
        ENVIRON,
        "os.environ['OTHER'] = '1'; n = int(os.environ['STEP']) / 99\n        os.environ['STEP'] = str(step.number)",
    ),
    "a context variable, set in every other step": (
        VARIABLE,
        "\n        if step.number % 2: h.set(step.number)\n        n = h.get() / 99",
    ),
    "a context variable that counts": (VARIABLE, "h.set(h.get() + 1); n = h.get() / 99"),
    "a file in memory that keeps its end": (
        STREAM.format("bytes(99)"),
        "h.seek(0); h.write(bytes(step.number)); n = len(h.getvalue()) / 99 + h.tell()",
    ),
    "a file in memory, read first": (
        STREAM.format(""),
        "n = len(h.getvalue()) % 7; h.seek(0); h.truncate(); h.write(bytes(step.number))",
    ),
    "a dropout in one step": ("", "if step.number == 5: model[2].p = 0.5"),
    "a dropout up to a step": ("", "if step.number <= 5: model[2].p = 0.5"),
    "a dropout in one step and from another on": (
        "",
        "\n        if step.number == 5: model[2].p = 0.5\n        if step.number >= 9: model[2].p = 0.2",
    ),
    "a dropout from a step on, behind the forward": (
        "",
        "n = model(a).mean().item()\n        if step.number >= 5: model[2].p = 0.5",
    ),
    "a dropout of each step, behind the forward": (
        "",
        "n = model(a).mean().item(); model[2].p = 0.1 + 0.01 * step.number",
    ),
    "a dropout that shrinks from a step on": ("", "if step.number >= 5: model[2].p *= 0.5"),
    "a dropout by a number that falls": (
        "class S: number = 0\ns = S()",
        "s.number = 7 - step.number\n        if s.number >= 5: model[2].p = 0.5 - 0.3 * (step.number > 1)",
    ),
}
