#![allow(clippy::unwrap_used)]

use super::*;

/// The source after marking, `<a>` as ➀ and `<b>` as ➁.
fn mark(source: &str) -> String {
    let controls = Controls::new([(0, "<a>".to_owned()), (1, "<b>".to_owned())]);
    mark_source(source, &controls)
        .unwrap()
        .source
        .replace('\u{F0000}', "➀")
        .replace('\u{F0001}', "➁")
}

#[test]
fn what_is_output_is_marked() {
    for (source, marked) in [
        ("<a>x<b>", "➀x➁"),
        ("é{{ '<a>' + x + \"<b>\" }}é<a>", "é{{ '➀' + x + \"➁\" }}é➀"),
        ("{% set t = '<a>' %}{{ t }}", "{% set t = '➀' %}{{ t }}"),
        (
            "{% set ns = namespace(t='<a>') %}",
            "{% set ns = namespace(t='➀') %}",
        ),
        ("{% set t %}<a>{% endset %}", "{% set t %}➀{% endset %}"),
        ("{{ '<a>' if x else '<b>' }}", "{{ '➀' if x else '➁' }}"),
        ("{{ x or '<a>' }}", "{{ x or '➀' }}"),
        ("{{ x | default('<a>') }}", "{{ x | default('➀') }}"),
        ("{{ xs | join('<a>') }}", "{{ xs | join('➀') }}"),
        ("{{ '<a>'.join(xs) }}", "{{ '➀'.join(xs) }}"),
        ("{{ ''.join(['<a>', x]) }}", "{{ ''.join(['➀', x]) }}"),
        ("{{ '{}'.format('<a>') }}", "{{ '{}'.format('➀') }}"),
        (
            "{{ {'u': '<a>', 'v': '<b>'}[x] }}",
            "{{ {'u': '➀', 'v': '➁'}[x] }}",
        ),
        ("{{ m.get(x, '<a>') }}", "{{ m.get(x, '➀') }}"),
        (
            "{% macro f(x='<a>') %}<b>{{ x }}{% endmacro %}{{ f('<a>') }}",
            "{% macro f(x='➀') %}➁{{ x }}{% endmacro %}{{ f('➀') }}",
        ),
        (
            "{% for t in ['<a>', x] %}{{ t }}{% endfor %}",
            "{% for t in ['➀', x] %}{{ t }}{% endfor %}",
        ),
        (
            "{% if x %}<a>{% elif y %}<b>{% else %}<a>{% endif %}",
            "{% if x %}➀{% elif y %}➁{% else %}➀{% endif %}",
        ),
        (
            "{% call f() %}<a>{% endcall %}",
            "{% call f() %}➀{% endcall %}",
        ),
        (
            "{% filter trim %}<a>{% endfilter %}",
            "{% filter trim %}➀{% endfilter %}",
        ),
        (
            "  {%- if x -%}  <a>  {%- endif %}\n<b>\n",
            "  {%- if x -%}  ➀  {%- endif %}\n➁\n",
        ),
        ("{% raw %}<a>{{{% endraw %}", "{% raw %}➀{{{% endraw %}"),
    ] {
        assert_eq!(mark(source), marked);
    }
}

#[test]
fn what_is_looked_at_stays_spelled() {
    for source in [
        "{% if '<a>' in x %}{% endif %}",
        "{% if x == '<a>' or x.startswith('<b>') %}{% endif %}",
        "{{ x.split('<a>')[-1] }}",
        "{{ x.replace('<a>', '<b>') }}",
        "{{ x | replace('<a>', '') | trim('<b>') }}",
        "{{ x['<a>'] }}",
        "{{ '<a>' | length }}",
        "{{ y if x != '<a>' else z }}",
        "{{ xs | select('equalto', '<a>') | list }}",
        "{{ {'<a>': x}[y] }}",
        "{{ x is eq('<a>') }}",
        "{# <a> #}",
    ] {
        assert_eq!(mark(source), source);
    }
}

#[test]
fn signs_are_seen() {
    let signs = |source: &str| {
        mark_source(source, &Controls::new([(0, "<|u|>".to_owned())]))
            .unwrap()
            .signs
    };
    assert!(signs("{{ '<|' + role + '|>' }}").assembles);
    assert!(signs("<|{{ role }}|>").assembles);
    assert!(signs(r"{{ '\u003c|u|>' }}").assembles);
    assert!(!signs("{{ '<|u|>' + role + '|>' }}").assembles);
    assert!(
        signs("{{ p.text }}").reads_parts
            && signs("{{ p['text'] }}").reads_parts
            && !signs("text").reads_parts
    );
    assert!(
        signs("{{ m.tool_calls }}").reads_calls
            && signs("{% if 'tool_calls' in m %}{% endif %}").reads_calls
    );
    assert_eq!(signs("{{ m.content }}"), Signs::default());
}

#[test]
fn nesting_has_a_limit() {
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(10_000), ")".repeat(10_000));
    assert!(mark_source(&deep, &Controls::new([])).is_err());
    let blocks = "{% if x %}".repeat(10_000) + &"{% endif %}".repeat(10_000);
    assert!(mark_source(&blocks, &Controls::new([])).is_err());
}
