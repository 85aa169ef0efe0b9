r"""The equation at the heart of each method, for its page of the reference.

One notation for all: $p$ the predicted clean posterior, $\tilde y$ the given label, $T$ the
transition matrix, $\ell = -\log p_{\tilde y}$ the cross-entropy of an example, hats for estimates.
"""

from __future__ import annotations

# name of the page -> (what is minimised or computed, words on its symbols)
EQUATIONS: dict[str, tuple[str, str]] = {
    "ce": (r"L = -\log p_{\tilde y}(x)", ""),
    "label_smoothing": (
        r"L = -\sum_j t_j \log p_j(x), \quad t = (1 - e)\, 1_{\tilde y} + e / K",
        "",
    ),
    "mixup": (
        r"L = -\lambda \log p_{\tilde y_i}(x') - (1 - \lambda) \log p_{\tilde y_j}(x'),"
        r" \quad x' = \lambda x_i + (1 - \lambda) x_j,"
        r" \quad \lambda \sim \operatorname{Beta}(\alpha, \alpha)",
        "",
    ),
    "noise_against_noise": (
        r"L = -\sum_j (1_{j = \tilde y} + \sigma z_j) \log p_j(x), \quad z_j \sim N(0, 1)",
        "The noise $z$ is drawn anew in every step.",
    ),
    "gce": (r"L = \frac{1 - p_{\tilde y}(x)^q}{q}", ""),
    "truncated_gce": (
        r"L = w\, \left( \frac{1 - p_{\tilde y}(x)^q}{q} - \frac{1 - k^q}{q} \right)",
        "$w$ is 1 where $p_{\\tilde y} \\ge k$ at the last refresh, else 0.",
    ),
    "mae": (r"L = 2\, (1 - p_{\tilde y}(x))", ""),
    "symmetric_ce": (
        r"L = -\alpha \log p_{\tilde y}(x) - \beta A\, (1 - p_{\tilde y}(x)),"
        r" \quad A = \log 10^{-4}",
        "",
    ),
    "bi_tempered": (
        r"L = \sum_j \left( t_j (\log_{t_1} t_j - \log_{t_1} p_j)"
        r" - \frac{t_j^{2 - t_1} - p_j^{2 - t_1}}{2 - t_1} \right),"
        r" \quad p_j = \exp_{t_2}(z_j - \lambda(z))",
        "$t$ is the one-hot label, $z$ the logits, $\\lambda(z)$ the normaliser, and "
        "$\\log_a x = (x^{1 - a} - 1) / (1 - a)$ with $\\exp_a$ its inverse.",
    ),
    "bootstrap_hard": (
        r"L = -\sum_j \left( \beta\, 1_{j = \tilde y}"
        r" + (1 - \beta)\, 1_{j = \hat y(x)} \right) \log p_j(x)",
        "$\\hat y(x)$ is the likeliest class.",
    ),
    "bootstrap_soft": (
        r"L = -\sum_j \left( \beta\, 1_{j = \tilde y} + (1 - \beta)\, p_j(x) \right) \log p_j(x)",
        "",
    ),
    "peer_loss": (
        r"L = -\log p_{\tilde y_i}(x_i) + \alpha \log p_{\tilde y_k}(x_j)",
        "The rows $j$ and $k$ are drawn at random and independently of each other.",
    ),
    "cores": (
        r"L = -\log p_{\tilde y}(x) + \frac{\beta}{K} \sum_j \log p_j(x)",
        "Rows with $-\\log p_{\\tilde y} > -\\frac{1}{K} \\sum_j \\log p_j$ are left out once the "
        "sieve has started.",
    ),
    "elr": (
        r"L = -\log p_{\tilde y}(x) + \lambda \log(1 - t^\top p(x)),"
        r" \quad t \leftarrow \beta t + (1 - \beta)\, p(x)",
        "Each row has a running target $t$ of its own.",
    ),
    "elr_plus": (
        r"L_1 = -\sum_j \tilde y'_j \log p^{(1)}_j(x') + \lambda \log(1 - t'^\top p^{(1)}(x')),"
        r" \quad t \leftarrow \beta t + (1 - \beta)\, \bar p^{(2)}(x)",
        "$x', \\tilde y', t'$ are mixed up; $\\bar p^{(2)}$ is the weight average of the other "
        "network. The second loss exchanges the networks.",
    ),
    "sop": (
        r"L = \operatorname{CE}(p(x) + u \odot u \odot 1_{\tilde y}"
        r" - v \odot v \odot (1 - 1_{\tilde y}),\; \tilde y)",
        "Each row has an error $u, v$ of its own, learnt beside the network.",
    ),
    "sop_plus": (
        r"L = L_{\text{SOP}} + \lambda_C\, \operatorname{KL}(p(x_1) \parallel p(x_2))"
        r" - \lambda_B \frac{1}{K} \sum_j \log \bar p_j",
        "$x_1, x_2$ are two views of the input, $\\bar p$ is the mean prediction of the batch.",
    ),
    "ln": (
        r"L = \frac{1}{2} r^\top \Sigma(x)^{-1} r + \frac{1}{2} \log \det \Sigma(x),"
        r" \quad r = \tau\, \log \frac{s_{1:K}}{s_{K+1}} - \mu(x),"
        r" \quad \Sigma = A A^\top, \; A = c(x)\, c(x)^\top + \lambda I",
        "$s$ is the smoothed label over the $K$ classes and a dummy one.",
    ),
    "het": (
        r"L = -\log E_\varepsilon \left[ \operatorname{softmax}_{\tilde y}"
        r" \left( \frac{f(x) + \varepsilon}{\tau} \right) \right],"
        r" \quad \varepsilon \sim N(0, \Sigma(x))",
        "`het`: diagonal $\\Sigma$ and $\\tau = 1$; `het_tau`: diagonal, any $\\tau$; "
        "`het_tau_full`: low rank plus diagonal. The mean is over samples.",
    ),
    "het_xl": (
        r"L = -\log E_\varepsilon \left[ \operatorname{softmax}_{\tilde y}"
        r" \left( \frac{W^\top (h(x) + \varepsilon)}{\tau} \right) \right],"
        r" \quad \varepsilon \sim N(0, \Sigma(x))",
        "The noise is added to the features $h$; $\\tau$ is learnt.",
    ),
    "co_teaching": (
        r"L_1 = \frac{1}{|S_2|} \sum_{i \in S_2} \ell^{(1)}_i,"
        r" \quad |S_2| = \lfloor R(t)\, n \rfloor,"
        r" \quad R(t) = 1 - \rho \min(t / T_k, 1)",
        "$S_2$ are the rows of the batch with the smallest losses of network 2, $\\rho$ is the "
        "noise rate. The second loss exchanges the networks.",
    ),
    "decoupling": (
        r"L_1 = \frac{1}{|D|} \sum_{i \in D} \ell^{(1)}_i,"
        r" \quad D = \{ i : \hat y^{(1)}(x_i) \ne \hat y^{(2)}(x_i) \}",
        "",
    ),
    "mentornet": (
        r"L = \frac{1}{n} \sum_i w_i \ell_i,"
        r" \quad w_i = \operatorname{clip}"
        r" \left( 1 - \frac{\ell_i - \lambda_1}{\lambda_2}, 0, 1 \right)",
        "",
    ),
    "cc": (
        r"c_i = \cos(h(x_i), \mu_{\tilde y_i}),"
        r" \quad d_i = | p^a(x_i) - p^b(x_i) |_1",
        "Labels near their class's mean direction $\\mu$ (large $c$) on which the two heads agree "
        "(small $d$) are kept; two Gaussians decide what large and small are.",
    ),
    "dividemix": (
        r"L = L_X + \lambda_u L_U + \lambda_r L_{\text{reg}},"
        r" \quad \bar y_i = w_i\, 1_{\tilde y_i} + (1 - w_i)\, p(x_i),"
        r" \quad w_i = P(\text{right} \mid \ell_i)",
        "$w$ comes from two Gaussians fitted to the other network's losses; rows of small $w$ get "
        "the sharpened guess of both networks instead of their label.",
    ),
    "promix": (
        r"L_X = \operatorname{CE}(\text{weak})"
        r" + w\, (\operatorname{CE}(\text{strong}) + L_{\text{mixup}} + L_{\text{FMix}}),"
        r" \quad p = \operatorname{softmax}(z + \delta \log \pi)",
        "Over the chosen rows: the $\\lceil \\text{quota}\\, N / K \\rceil$ smallest losses of "
        "each class, and labels of which the network is surer than `threshold`. $\\pi$ is the "
        "running mean prediction.",
    ),
    "pgdf": (
        r"w_i = P(\text{right} \mid p_{\tilde y_i}^{(1)}(x_i), ..., p_{\tilde y_i}^{(E)}(x_i))",
        "The probability that a label is right, from its history over $E$ epochs, takes the place "
        "of $w$ in [DivideMix](dividemix.md).",
    ),
    "second_opinion": (
        r"L = -\sum_j q_j \log p_j(x),"
        r" \quad q = w\, 1_{\tilde y}"
        r" + (1 - w) \operatorname{softmax}(2 \log (m\, S_{\cdot \tilde y})),"
        r" \quad w = \left( \frac{l_{\tilde y}}{\max_j l_j} \right)^\gamma,"
        r" \quad l = m / c",
        "$m$ is the peer's opinion of the row, $c$ its mean opinion over all rows and $\\gamma$ "
        "the field `exponent`: a plausible label is believed, an implausible one is replaced by "
        "the opinion, given how much oftener a class has this label than others have ($S$).",
    ),
    "ensemble": (
        r"p(x) \propto \prod_{k=1}^{4} \bar p_k(x)^{1/4}",
        "$\\bar p_1, \\bar p_2$ are the weight averages of one pair of networks, "
        "$\\bar p_3, \\bar p_4$ those of another; each pair is trained by "
        "[second_opinion](second_opinion.md).",
    ),
    "forward": (r"L = -\log \sum_i p_i(x)\, T_{i \tilde y}", ""),
    "backward": (r"L = -\sum_j (T^{-1})_{\tilde y j} \log p_j(x)", ""),
    "reweight": (
        r"L = -\frac{p_{\tilde y}(x)}{(p(x) T)_{\tilde y}} \log p_{\tilde y}(x)",
        "",
    ),
    "t_revision": (
        r"L = -\frac{p_{\tilde y}(x)}{(p(x)\, (T + \Delta T))_{\tilde y}} \log p_{\tilde y}(x)",
        "$\\Delta T$ is learnt in the last stage.",
    ),
    "dual_t": (
        r"T_{ij} = \sum_l P(y' = l \mid y = i)\, P(\tilde y = j \mid y' = l)",
        "$y'$ is the class that the warmed-up network predicts.",
    ),
    "volminnet": (r"L = -\log (p(x) T)_{\tilde y} + \lambda \log |\det T|", ""),
    "ptd": (
        r"T(x) = \sum_k w_k(x)\, P^{(k)}, \quad \sum_k w_k(x) = 1",
        "$w(x)$ are the parts of $x$, found by a non-negative factorisation of its features.",
    ),
    "bltm": (
        r"L_T = -\log T_{\hat y \tilde y}(x),"
        r" \quad L = -\log (p(x)\, (T(x) + \Delta T))_{\tilde y}",
        "$\\hat y$ is the distilled label: the argmax of the noisy posterior.",
    ),
    "meidtm": (
        r"L = -\log (p(x) T(x))_{\tilde y}"
        r" + \lambda\, E_{ij} [ s_{ij} (T(x_i) - T(x_j))^2 ],"
        r" \quad s_{ij} = \pm \exp \left( -\frac{|p_i - p_j|^2}{2 \sigma^2} \right)",
        "The sign is negative where the likeliest classes differ.",
    ),
    "causal_nl": (
        r"L = -E \left[ \log p(x \mid y, z) + \log p(\tilde y \mid x, y) \right]"
        r" + \operatorname{KL}(q(y \mid x) \parallel p(y))"
        r" + \operatorname{KL}(q(z \mid x, y) \parallel p(z))",
        "Each term has a weight of its own.",
    ),
    "dtm": (
        r"L = -\log (p(x) T(x))_{\tilde y},"
        r" \quad T(x) = \frac{1}{S} \sum_s \operatorname{softmax}(W_s),"
        r" \quad W_s \sim q_\theta(W \mid h(x))",
        "$q_\\theta$ is the diffusion model; the softmax is over the rows of $W$.",
    ),
    "lra": (
        r"L = | y_0 - g_\theta(y_t, t, x) |^2,"
        r" \quad y_t = \sqrt{\bar \alpha_t}\, y_0 + \sqrt{1 - \bar \alpha_t}\, \varepsilon",
        "$y_0$ is the label of $x$ or of one of its nearest neighbours.",
    ),
    "crowd": (
        r"L = \frac{1}{N} \sum_i \left( \lambda\, \text{ELR}_i"
        r" - \log \sum_k p_k(x_i) \prod_{(a, j) \in V_i} T^{(a)}_{kj} \right) + \frac{R}{N}",
        "$V_i$ are the votes on row $i$, $T^{(a)}$ is the matrix of annotator $a$.",
    ),
}


def equation(page: str) -> str:
    """The block for a page; nothing for a method that is not here."""
    formula, words = EQUATIONS.get(page, ("", ""))
    return f"$$\n{formula}\n$$\n\n{words}".rstrip() if formula else ""
