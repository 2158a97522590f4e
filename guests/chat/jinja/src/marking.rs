//! Which parts of a template's source are output.
//!
//! A literal in template data or in a string constant is output unless the constant is only looked at: compared,
//! tested with `in` or `is`, an argument of a filter or method, or a subscript. Those keep their spelling, since the
//! strings they meet are spelled out too.

use crate::controls::Controls;
use minijinja::machinery::{Span, ast};
use std::ops::Range;

/// A template's source with its output marked.
#[derive(Clone, Debug)]
pub struct Marked {
    /// The source with each control literal that is output replaced by its mark.
    pub source: String,
    /// What to probe for.
    pub signs: Signs,
}

/// What a template's source suggests about its behaviour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// Something that is output ends in the middle of a control literal (`'<|' + role`), or spells one in escapes.
    pub assembles: bool,
    /// It looks for the text of a content part.
    pub reads_parts: bool,
    /// It looks for tool calls.
    pub reads_calls: bool,
}

impl Signs {
    /// What either suggests.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            assembles: self.assembles || other.assembles,
            reads_parts: self.reads_parts || other.reads_parts,
            reads_calls: self.reads_calls || other.reads_calls,
        }
    }
}

/// Marks a template.
///
/// # Errors
/// When the template does not parse.
pub fn mark_source(source: &str, controls: &Controls) -> Result<Marked, minijinja::Error> {
    let tree = minijinja::machinery::parse(source, "chat", crate::environment::syntax()?)?;
    let mut walk = Walk {
        output: Vec::new(),
        signs: Signs::default(),
    };
    walk.stmt(&tree);
    let Walk {
        output: mut spans,
        mut signs,
    } = walk;
    spans.sort_by_key(|(s, _)| (s.start, s.end));
    let mut out = String::with_capacity(source.len());
    let mut from = 0;
    for (span, text) in spans {
        let (start, end) = (span.start.max(from), span.end.min(source.len()));
        if start >= end || !source.is_char_boundary(start) || !source.is_char_boundary(end) {
            continue;
        }
        out.push_str(&source[from..start]);
        let (found, meant) = (
            controls.find_all(&source[start..end]),
            controls.find_all(&text),
        );
        signs.assembles |=
            found.len() != meant.len() || controls.ends_inside(&controls.mark_all(&text));
        out.push_str(&controls.mark_all(&source[start..end]));
        from = end;
    }
    out.push_str(&source[from..]);
    Ok(Marked { source: out, signs })
}

struct Walk {
    /// Byte ranges of the source whose literals are output, and what they mean.
    output: Vec<(Range<usize>, String)>,
    signs: Signs,
}

/// Whether a constant met here reaches the output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Output,
    LookedAt,
}

impl Walk {
    fn add(&mut self, span: Span, meaning: &str) {
        let range = span.start_offset as usize..span.end_offset as usize;
        self.output.push((range, meaning.to_owned()));
    }

    fn stmts(&mut self, stmts: &[ast::Stmt<'_>]) {
        for s in stmts {
            self.stmt(s);
        }
    }

    fn stmt(&mut self, stmt: &ast::Stmt<'_>) {
        use ast::Stmt as S;
        match stmt {
            S::Template(t) => self.stmts(&t.children),
            S::EmitExpr(e) => self.expr(&e.expr, Use::Output),
            S::EmitRaw(r) => self.add(r.span(), r.raw),
            S::ForLoop(f) => {
                self.expr(&f.iter, Use::Output);
                if let Some(filter) = &f.filter_expr {
                    self.expr(filter, Use::Output);
                }
                self.stmts(&f.body);
                self.stmts(&f.else_body);
            }
            S::IfCond(i) => {
                self.expr(&i.expr, Use::LookedAt);
                self.stmts(&i.true_body);
                self.stmts(&i.false_body);
            }
            S::WithBlock(w) => {
                for (_, value) in &w.assignments {
                    self.expr(value, Use::Output);
                }
                self.stmts(&w.body);
            }
            S::Set(s) => self.expr(&s.expr, Use::Output),
            S::SetBlock(s) => {
                if let Some(filter) = &s.filter {
                    self.expr(filter, Use::Output);
                }
                self.stmts(&s.body);
            }
            S::AutoEscape(a) => self.stmts(&a.body),
            S::FilterBlock(f) => {
                self.expr(&f.filter, Use::Output);
                self.stmts(&f.body);
            }
            S::Block(b) => self.stmts(&b.body),
            S::Macro(m) => self.macro_(m),
            S::CallBlock(c) => {
                self.call(&c.call, Use::Output);
                self.macro_(&c.macro_decl);
            }
            S::Do(d) => self.call(&d.call, Use::Output),
            S::Import(_)
            | S::FromImport(_)
            | S::Extends(_)
            | S::Include(_)
            | S::Continue(_)
            | S::Break(_) => {}
        }
    }

    /// Notes a name or constant that tells what the template reads.
    fn name(&mut self, name: &str) {
        self.signs.reads_parts |= name == "text";
        self.signs.reads_calls |= name == "tool_calls";
    }

    fn macro_(&mut self, m: &ast::Macro<'_>) {
        for default in &m.defaults {
            self.expr(default, Use::Output);
        }
        self.stmts(&m.body);
    }

    fn exprs(&mut self, exprs: &[ast::Expr<'_>], used: Use) {
        for e in exprs {
            self.expr(e, used);
        }
    }

    fn expr(&mut self, expr: &ast::Expr<'_>, used: Use) {
        use ast::Expr as E;
        match expr {
            E::Var(_) => {}
            E::Const(c) => {
                self.name(c.value.as_str().unwrap_or_default());
                if used == Use::Output {
                    self.add(c.span(), c.value.as_str().unwrap_or_default());
                }
            }
            E::Slice(s) => self.expr(&s.expr, used),
            E::UnaryOp(u) => self.expr(&u.expr, used),
            E::BinOp(b) => {
                use ast::BinOpKind as K;
                let used = match b.op {
                    K::Eq | K::Ne | K::Lt | K::Lte | K::Gt | K::Gte | K::In => Use::LookedAt,
                    _ => used,
                };
                self.expr(&b.left, used);
                self.expr(&b.right, used);
            }
            E::Compare(c) => {
                self.expr(&c.expr, Use::LookedAt);
                for op in &c.ops {
                    self.expr(&op.expr, Use::LookedAt);
                }
            }
            E::IfExpr(i) => {
                self.expr(&i.test_expr, Use::LookedAt);
                self.expr(&i.true_expr, used);
                if let Some(e) = &i.false_expr {
                    self.expr(e, used);
                }
            }
            E::Filter(f) => {
                if let Some(e) = &f.expr {
                    // What is counted must have its length.
                    let counted = matches!(f.name, "length" | "count");
                    self.expr(e, if counted { Use::LookedAt } else { used });
                }
                // These put their argument into the output; other filters look for it.
                let shown = matches!(f.name, "default" | "d" | "join" | "format");
                self.args(&f.args, if shown { used } else { Use::LookedAt });
            }
            E::Test(t) => {
                self.expr(&t.expr, Use::LookedAt);
                self.args(&t.args, Use::LookedAt);
            }
            E::GetAttr(g) => {
                self.name(g.name);
                self.expr(&g.expr, used);
            }
            E::GetItem(g) => {
                self.expr(&g.expr, used);
                self.expr(&g.subscript_expr, Use::LookedAt);
            }
            E::Call(c) => self.call(c, used),
            E::List(l) => self.exprs(&l.items, used),
            E::Tuple(t) => self.exprs(&t.items, used),
            E::Map(m) => {
                self.exprs(&m.keys, Use::LookedAt);
                self.exprs(&m.values, used);
            }
        }
    }

    fn call(&mut self, call: &ast::Call<'_>, used: Use) {
        match call.identify_call() {
            // Macros and namespace() pass constants on.
            ast::CallType::Function(_) => self.args(&call.args, used),
            ast::CallType::Method(object, name) => {
                self.expr(object, used);
                // `get` may return its fallback, `format` shows its arguments, `join` its items; the rest look.
                for (i, argument) in call.args.iter().enumerate() {
                    let shown =
                        matches!(name, "format" | "join" | "append") || name == "get" && i == 1;
                    self.args(
                        std::slice::from_ref(argument),
                        if shown { used } else { Use::LookedAt },
                    );
                }
            }
            ast::CallType::Object(object) => {
                self.expr(object, used);
                self.args(&call.args, used);
            }
            ast::CallType::Block(_) => {}
        }
    }

    fn args(&mut self, args: &[ast::CallArg<'_>], used: Use) {
        for a in args {
            match a {
                ast::CallArg::Pos(e)
                | ast::CallArg::Kwarg(_, e)
                | ast::CallArg::PosSplat(e)
                | ast::CallArg::KwargSplat(e) => {
                    self.expr(e, used);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
