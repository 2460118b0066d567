//! The part of minijinja's language that templates may use.
//!
//! minijinja counts the steps of a template, and not what they make: forty times `a ~ a` would take more memory than there is. So
//! nothing that templates may say makes a text or a list of others, but writing one after the other and filters of Larder's own,
//! both of which are counted. What is not known here is refused.

use minijinja::machinery::ast::{BinOp, BinOpKind, CallArg, Expr, Filter, Stmt};
use minijinja::machinery::{Token, parse, parse_expr, tokenize};
use minijinja::value::ValueKind;

/// The most words of one expression or tag. What is read of them is a tree that is walked by calls, and no call may find its thread's
/// stack used up.
const WORDS: usize = 256;

/// The most times that a template may say `elif`: each is below the one before it.
const ELIFS: usize = 100;

/// Refuses a template that says more than templates may; the words follow the name of its field.
pub(super) fn check(source: &str) -> Result<(), String> {
    bounded(source, false)?;
    let template = parse(source, "template", Default::default(), Default::default()).map_err(unread)?;
    statement(&template)
}

/// The same for an expression.
pub(super) fn check_expression(source: &str) -> Result<(), String> {
    bounded(source, true)?;
    expression(&parse_expr(source).map_err(unread)?)
}

/// Refuses what would be too deep a tree.
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
        Stmt::ForLoop(each) if each.recursive => refuse("there is no `recursive`"),
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
        Stmt::SetBlock(_) => refuse("there is no `set` without `=`: write the text where it belongs"),
        Stmt::FilterBlock(_) => refuse("there is no `filter` block: write the filter behind a value"),
        Stmt::AutoEscape(_) => refuse("there is no `autoescape`"),
        Stmt::Do(_) => refuse("there is no `do`"),
    }
}

fn expression(one: &Expr<'_>) -> Result<(), String> {
    match one {
        Expr::Var(_) | Expr::Const(_) => Ok(()),
        Expr::Slice(_) => refuse("there are no slices: use `for` with an `if`"),
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
        CallArg::PosSplat(_) | CallArg::KwargSplat(_) => refuse("there is no `*` before an argument"),
    })
}

/// Lists of lists would take more each time that they are written.
fn constants<'a>(mut all: impl Iterator<Item = &'a Expr<'a>>) -> Result<(), String> {
    if all.all(|item| matches!(item, Expr::Const(_))) { Ok(()) } else { refuse("lists and maps are of constants") }
}

fn operation(two: &BinOp<'_>) -> Result<(), String> {
    expression(&two.left)?;
    expression(&two.right)?;
    let (left, right) = (is_number(&two.left), is_number(&two.right));
    match two.op {
        BinOpKind::Concat => refuse("there is no `~`: write one behind the other, as in {{ a }}{{ b }}"),
        BinOpKind::Add if !left && !right => {
            refuse("`+` is for numbers, of which one must be seen to be one: `(a | int) + b`")
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

/// True for what is a number or an error, whatever the names in it stand for.
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
