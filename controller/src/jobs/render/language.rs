//! The subset of minijinja's language that templates may use.
//!
//! minijinja's fuel limits the steps of a template but not the size of its values: forty times `a ~ a` would exhaust
//! memory. Therefore templates cannot build a string or a list from others, except by writing values one after the
//! other and with Larder's own filters. Both of these count what they write. Syntax that is not on the list is
//! rejected.

use minijinja::machinery::ast::{BinOp, BinOpKind, CallArg, Expr, Filter, Stmt};
use minijinja::machinery::{Token, parse, parse_expr, tokenize};
use minijinja::value::ValueKind;

/// The most tokens of one expression or tag. The parsed tree is walked recursively, so its depth must not overflow the
/// thread's stack.
const WORDS: usize = 256;

/// The most `elif` branches of a template: each one is nested inside the previous one.
const ELIFS: usize = 100;

/// Rejects a template that uses more than the subset. The error completes a sentence that begins with the name of the
/// field.
pub(super) fn check(source: &str) -> Result<(), String> {
    bounded(source, false)?;
    let template = parse(source, "template", Default::default(), Default::default()).map_err(unread)?;
    statement(&template)
}

/// Like [`check`], for an expression.
pub(super) fn check_expression(source: &str) -> Result<(), String> {
    bounded(source, true)?;
    expression(&parse_expr(source).map_err(unread)?)
}

/// Rejects a source whose tree would be too deep.
fn bounded(source: &str, is_expression: bool) -> Result<(), String> {
    let (mut words, mut elifs) = (0, 0);
    for token in tokenize(source, is_expression, Default::default(), Default::default()) {
        match token.map_err(unread)?.0 {
            Token::VariableStart | Token::BlockStart => words = 0,
            Token::Ident("elif") => elifs += 1,
            _ => words += 1,
        }
        if words > WORDS {
            return Err(format!("has an expression of more than {WORDS} words"));
        }
        if elifs > ELIFS {
            return Err(format!("has more than {ELIFS} `elif`"));
        }
    }
    Ok(())
}

fn unread(error: minijinja::Error) -> String {
    format!("cannot be rendered: {error}")
}

fn refuse<T>(what: &str) -> Result<T, String> {
    Err(format!("cannot be rendered: {what}"))
}

fn statements(all: &[Stmt<'_>]) -> Result<(), String> {
    all.iter().try_for_each(statement)
}

fn statement(one: &Stmt<'_>) -> Result<(), String> {
    match one {
        Stmt::Template(template) => statements(&template.children),
        Stmt::EmitRaw(_) => Ok(()),
        Stmt::EmitExpr(emitted) => expression(&emitted.expr),
        Stmt::ForLoop(each) if each.recursive => refuse("`recursive` is not supported"),
        Stmt::ForLoop(each) => {
            expression(&each.iter)?;
            each.filter_expr.iter().try_for_each(expression)?;
            statements(&each.body)?;
            statements(&each.else_body)
        }
        Stmt::IfCond(choice) => {
            expression(&choice.expr)?;
            statements(&choice.true_body)?;
            statements(&choice.false_body)
        }
        Stmt::WithBlock(with) => {
            with.assignments.iter().try_for_each(|(_, value)| expression(value))?;
            statements(&with.body)
        }
        Stmt::Set(set) => expression(&set.expr),
        Stmt::SetBlock(_) => refuse("`set` without `=` is not supported: write the text where it belongs"),
        Stmt::FilterBlock(_) => refuse("there is no `filter` block: write the filter after a value"),
        Stmt::AutoEscape(_) => refuse("`autoescape` is not supported"),
        Stmt::Do(_) => refuse("`do` is not supported"),
    }
}

fn expression(one: &Expr<'_>) -> Result<(), String> {
    match one {
        Expr::Var(_) | Expr::Const(_) => Ok(()),
        Expr::Slice(_) => refuse("slices are not supported: use `for` with an `if`"),
        Expr::UnaryOp(one) => expression(&one.expr),
        Expr::BinOp(two) => operation(two),
        Expr::Compare(compared) => {
            expression(&compared.expr)?;
            compared.ops.iter().try_for_each(|with| expression(&with.expr))
        }
        Expr::IfExpr(choice) => {
            expression(&choice.test_expr)?;
            expression(&choice.true_expr)?;
            choice.false_expr.iter().try_for_each(expression)
        }
        Expr::Filter(filter) => {
            filter.expr.iter().try_for_each(expression)?;
            arguments(&filter.args)
        }
        Expr::Test(test) => {
            expression(&test.expr)?;
            arguments(&test.args)
        }
        Expr::GetAttr(of) => expression(&of.expr),
        Expr::GetItem(of) => {
            expression(&of.expr)?;
            expression(&of.subscript_expr)
        }
        Expr::Call(call) if matches!(&call.expr, Expr::Var(name) if name.id == "range") => arguments(&call.args),
        Expr::Call(_) => refuse("there is no function but `range`"),
        Expr::List(list) => constants(list.items.iter()),
        Expr::Map(map) => constants(map.keys.iter().chain(&map.values)),
    }
}

fn arguments(all: &[CallArg<'_>]) -> Result<(), String> {
    all.iter().try_for_each(|argument| match argument {
        CallArg::Pos(value) | CallArg::Kwarg(_, value) => expression(value),
        CallArg::PosSplat(_) | CallArg::KwargSplat(_) => refuse("`*` before an argument is not supported"),
    })
}

/// Allows constants only: a list that contains lists would grow each time it is written.
fn constants<'a>(mut all: impl Iterator<Item = &'a Expr<'a>>) -> Result<(), String> {
    if all.all(|item| matches!(item, Expr::Const(_))) { Ok(()) } else { refuse("lists and maps consist of constants") }
}

fn operation(two: &BinOp<'_>) -> Result<(), String> {
    expression(&two.left)?;
    expression(&two.right)?;
    let (left, right) = (is_number(&two.left), is_number(&two.right));
    match two.op {
        BinOpKind::Concat => refuse("`~` is not supported: write one value after the other, as in {{ a }}{{ b }}"),
        BinOpKind::Add if !left && !right => {
            refuse("`+` adds numbers, and one operand must be recognizable as a number: `(a | int) + b`")
        }
        BinOpKind::Mul if !left || !right => refuse("`*` is for numbers: `(a | int) * 2`"),
        BinOpKind::Add
        | BinOpKind::Mul
        | BinOpKind::Sub
        | BinOpKind::Div
        | BinOpKind::FloorDiv
        | BinOpKind::Rem
        | BinOpKind::Pow
        | BinOpKind::Eq
        | BinOpKind::Ne
        | BinOpKind::Lt
        | BinOpKind::Lte
        | BinOpKind::Gt
        | BinOpKind::Gte
        | BinOpKind::ScAnd
        | BinOpKind::ScOr
        | BinOpKind::In => Ok(()),
    }
}

/// True for an expression that yields a number or an error, whatever the values of its names.
fn is_number(one: &Expr<'_>) -> bool {
    match one {
        Expr::Const(constant) => constant.value.kind() == ValueKind::Number,
        Expr::UnaryOp(one) => is_number(&one.expr),
        Expr::BinOp(two) => match two.op {
            BinOpKind::Sub | BinOpKind::Div | BinOpKind::FloorDiv | BinOpKind::Rem | BinOpKind::Pow => true,
            BinOpKind::Add => is_number(&two.left) || is_number(&two.right),
            BinOpKind::Mul => is_number(&two.left) && is_number(&two.right),
            _ => false,
        },
        Expr::Filter(filter) => is_of_numbers(filter),
        _ => false,
    }
}

fn is_of_numbers(filter: &Filter<'_>) -> bool {
    ["int", "length"].contains(&filter.name)
}
