"""Chat templates that mean harm: calls that do not end, and results that fill the memory."""

_NESTED = (
    "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}"
    "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}"
)
_USES = (
    "{{ ns.a == ns.b }}",
    "{{ ns.a != ns.b }}",
    "{{ ns.a < ns.b }}",
    "{{ ns.a <= ns.b }}",
    "{{ ns.a in [ns.b] }}",
    "{{ ns.a is eq(ns.b) }}",
    "{{ ns.a }}",
    "{{ ns.a ~ '' }}",
    "{{ ns.a | string }}",
    "{{ ns.a | tojson }}",
    "{{ ns.a | pprint }}",
    "{{ [ns.a] | join }}",
    "{{ [ns.b, ns.a] | sort }}",
    "{{ [ns.b, ns.a] | max }}",
    "{{ [ns.a, ns.b] | unique | list }}",
    "{{ [ns.b].index(ns.a) }}",
    "{{ [ns.b].count(ns.a) }}",
    "{{ '%s' % [ns.a] }}",
    "{{ '{}'.format(ns.a) }}",
    "{{ ns.a | urlencode }}",
    "{{ ns.a | length if ns.a == ns.b }}",
    "{% if ns.a == ns.b %}x{% endif %}",
    "{% for x in [ns.a] if x == ns.b %}x{% endfor %}",
    "{{ {'a': ns.a} == {'a': ns.b} }}",
    "{{ messages | selectattr('role', 'eq', 1) | list == 0 or ns.a == ns.b }}",
)
_LONG = "{% set long = 'ab ' * 2**22 %}"
_FILLS = (
    "{{ long | replace('a', long) }}",
    "{{ long.replace('a', long) }}",
    "{{ long.replace('', long) }}",
    "{{ long.join(long) }}",
    "{{ [long] * 1000 | join }}",
    "{{ ([long] * 2**16) | join(long) }}",
    "{{ ('%s' * 2**14) % ((long,) * 2**14) }}",
    "{{ ('{0}' * 2**14).format(long) }}",
    "{{ long | indent(60000, true) | indent(60000, true) }}",
    "{{ (long | replace(' ', '\n')) | indent(60000) }}",
    "{{ long.translate({97: long}) }}",
    "{{ long | wordwrap(1) }}",
    "{{ ('x' * 2**23) | wordwrap(1, true, long) }}",
    "{{ long | urlize(1) }}",
    "{{ long.expandtabs(60000) }}",
    "{{ ('\t' * 2**20).expandtabs(60000) }}",
    "{{ long | list | tojson(indent=60000) }}",
    "{{ long | escape | escape | escape | escape | escape }}",
    "{{ (long | list) | map('replace', 'a', long) | list }}",
    "{{ long.split(' ') | map('center', 60000) | join }}",
    "{{ long | xmlattr }}",
    "{{ range(10**9) | list }}",
    "{{ range(2**30) | sum }}",
    "{{ range(2**40) | batch(2) | list }}",
    "{{ [[1] * 2**20] * 2**10 | sum(start=[]) }}",
    "{{ lipsum(n=60000) * 100 }}",
    "{{ dict.fromkeys(range(2**26)) }}",
    "{{ (range(2**22) | list) | groupby(0) }}",
    "{{ 9 ** 4000 ** 2 }}",
    "{% macro f(x, n) %}{{ f(x ~ x, n - 1) if n else x }}{% endmacro %}{{ f('ab', 40) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% else %}ab{% endif %}{% endmacro %}{{ f(40) }}",
    "{% set ns = namespace(x=['a']) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
)
_ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for a in [1, 1] recursive %}{{ loop([1, 1]) if loop.depth < 60 }}{% endfor %}",
    "{% for a in range(99999) %}{{ range(99999) | list | length }}{% endfor %}",
    "{{ 10**(10**10) }}",
)
_LARGE = (
    "{{ 'a' * 10**10 }}",
    "{{ [1] * 10**10 }}",
    "{% set ns = namespace(x='ab') %}" + "{% set ns.x = ns.x ~ ns.x %}" * 40 + "{{ ns.x }}",
    "{% set ns = namespace(x=[1]) %}" + "{% set ns.x = ns.x + ns.x %}" * 40 + "{{ ns.x }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '{:{}}'.format(1, 999999999) }}",
    "{{ 'a' | center(999999999) }}",
    "{{ 'a'.zfill(999999999) }}",
    "{% set x = 'a' * 2**20 %}{% for i in range(1000) %}{{ x }}{% endfor %}",
)
HOSTILE = (*(_NESTED + use for use in _USES), *(_LONG + fill for fill in _FILLS), *_ENDLESS, *_LARGE)
# Of each kind one.
KINDS = (*(HOSTILE[i] for i in (0, 8, 9, 10, 25, 28, 34, 36, 46, 54)), _ENDLESS[0], _ENDLESS[-1], *_LARGE[:5:2])
