package elementary

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"strings"
	"testing"
)

// TestProductsAreRounded reads the source of the package: every product of
// floats that is computed at run time must be the operand of a conversion to
// float64, and of package math only exact functions may be called.
func TestProductsAreRounded(t *testing.T) {
	fset := token.NewFileSet()
	names, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, e := range names {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, e.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	info := &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{},
		Uses:  map[*ast.Ident]types.Object{},
	}
	config := types.Config{Importer: importer.ForCompiler(fset, "source", nil)}
	if _, err := config.Check("elementary", fset, files, info); err != nil {
		t.Fatal(err)
	}
	exact := map[string]bool{
		"Abs": true, "Copysign": true, "Float64bits": true, "Float64frombits": true,
		"Inf": true, "IsInf": true, "IsNaN": true, "NaN": true, "Signbit": true,
		"Sqrt": true, "Trunc": true,
	}
	isFloat := func(e ast.Expr) bool {
		b, ok := info.Types[e].Type.Underlying().(*types.Basic)
		return ok && b.Info()&types.IsFloat != 0
	}
	products := 0
	for _, f := range files {
		rounded := map[ast.Expr]bool{}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if info.Types[n.Fun].IsType() && info.Types[n].Type == types.Typ[types.Float64] {
					rounded[n.Args[0]] = true
				}
			case *ast.BinaryExpr:
				if n.Op == token.MUL && info.Types[n].Value == nil && isFloat(n) {
					products++
					if !rounded[n] {
						t.Errorf("%v: product is not rounded", fset.Position(n.Pos()))
					}
				}
			case *ast.AssignStmt:
				if n.Tok == token.MUL_ASSIGN && isFloat(n.Lhs[0]) {
					t.Errorf("%v: product is not rounded", fset.Position(n.Pos()))
				}
			case *ast.SelectorExpr:
				fn, ok := info.Uses[n.Sel].(*types.Func)
				if ok && fn.Pkg().Path() == "math" && !exact[fn.Name()] {
					t.Errorf("%v: call of math.%s", fset.Position(n.Pos()), fn.Name())
				}
			}
			return true
		})
	}
	if products < 100 {
		t.Errorf("saw %d products only", products)
	}
}
