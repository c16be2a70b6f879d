package tests

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/autograd/gradcheck"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/nn"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/ops/blockattnres"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

// Every exported function and method of the module that gives a Var has float64
// gradients that agree with finite differences to 1e-9, for every input. Those
// of package ops have a table and a walk of their own, in ops/check_test.go.

// gradientCheck is a use of a differentiable function.
type gradientCheck struct {
	shapes []tensor.Shape
	apply  gradcheck.Func
	step   float64 // 0: 3e-4
}

func vectors(n int, shape tensor.Shape, more ...tensor.Shape) []tensor.Shape {
	return append(slices.Repeat([]tensor.Shape{shape}, n), more...)
}

// operator are uses of a path of BlockAttnRes: with and without a partial block
// and the norm, any scale, one source, weights of (D) and (1,D), one tensor twice.
func operator(path func(in blockattnres.Inputs, o ...blockattnres.Option) *autograd.Var) []gradientCheck {
	blocks := func(n, last int) func(v []*autograd.Var, o ...blockattnres.Option) *autograd.Var {
		return func(v []*autograd.Var, o ...blockattnres.Option) *autograd.Var {
			in := blockattnres.Inputs{Blocks: v[:n], ProjWeight: v[last]}
			if last > n {
				in.PartialBlock = v[n]
			}
			if len(v) > last+1 {
				in.RMSNormGamma = v[last+1]
			}
			return path(in, append(o, blockattnres.Eps(0.01))...)
		}
	}
	use := func(n, last int, o ...blockattnres.Option) gradcheck.Func {
		return func(_ *autograd.Tape, v []*autograd.Var) *autograd.Var { return blocks(n, last)(v, o...) }
	}
	row, d := tensor.Shape{2, 3, 5}, tensor.Shape{5}
	return []gradientCheck{
		{shapes: vectors(4, row, d, d), apply: use(3, 4)},
		{shapes: vectors(3, row, d, d), apply: use(3, 3, blockattnres.Scale(-0.7))},
		{shapes: vectors(4, row, d), apply: use(3, 4, blockattnres.Scale(1.5), blockattnres.WithoutRMSNorm())},
		{shapes: vectors(2, row, d), apply: use(2, 2, blockattnres.WithoutRMSNorm())},
		{shapes: vectors(3, row, d, d), apply: use(2, 3, blockattnres.Scale(0))},
		{shapes: vectors(1, row, d, d), apply: use(1, 1)},
		{shapes: vectors(3, tensor.Shape{1, 2, 1}, tensor.Shape{1}, tensor.Shape{1}), apply: use(2, 3)},
		{shapes: vectors(3, tensor.Shape{1, 2, 7}, tensor.Shape{1, 7}, tensor.Shape{1, 7}), apply: use(2, 3, blockattnres.Scale(3))},
		{shapes: vectors(2, row, d, d), apply: func(_ *autograd.Tape, v []*autograd.Var) *autograd.Var {
			return path(blockattnres.Inputs{Blocks: []*autograd.Var{v[0], v[1], v[0]}, PartialBlock: v[0], ProjWeight: v[2], RMSNormGamma: v[3]})
		}},
	}
}

// deep applies a function of a depth state after some sublayers.
func deep(residual nn.Residual, size, sublayers int, use func(d *nn.Depth, query, gain *autograd.Var) *autograd.Var) gradientCheck {
	return gradientCheck{shapes: vectors(sublayers+1, tensor.Shape{1, 3, 4}, tensor.Shape{4}, tensor.Shape{4}), apply: func(_ *autograd.Tape, v []*autograd.Var) *autograd.Var {
		depth, err := nn.NewDepth(residual, size, v[0])
		if err != nil {
			return autograd.Failed(err)
		}
		for i := range sublayers {
			depth.Add(v[1+i])
			depth.Add(use(depth, v[sublayers+1], v[sublayers+2]))
		}
		return use(depth, v[sublayers+1], v[sublayers+2])
	}}
}

// whole applies a function of a tiny transformer to its parameters.
func whole(residual nn.Residual, use func(m *nn.Transformer, t *autograd.Tape, ids, targets *autograd.Var) *autograd.Var) gradientCheck {
	m, err := nn.NewTransformer(nn.Config{Vocab: 7, Layers: 2, Dim: 4, Heads: 2, KVHeads: 1, Hidden: 5, Residual: residual, BlockSize: 3, DType: tensor.Float64}, 3)
	if err != nil {
		panic(err)
	}
	c := gradientCheck{step: 4e-5} // norms of short rows are curved
	for _, p := range m.Parameters() {
		c.shapes = append(c.shapes, p.Value.Shape())
	}
	c.apply = func(t *autograd.Tape, v []*autograd.Var) *autograd.Var {
		for i, p := range m.Parameters() {
			p.Value = v[i].Tensor()
		}
		ids, err := tensor.FromSlice([]int32{1, 0, 6, 3, 3, 2}, 2, 3)
		if err != nil {
			return autograd.Failed(err)
		}
		targets, err := tensor.FromSlice([]int32{0, 6, 2, 3, 2, 5}, 2, 3)
		if err != nil {
			return autograd.Failed(err)
		}
		return use(m, t, t.Const(ids), t.Const(targets))
	}
	return c
}

func gradientChecks() map[string][]gradientCheck {
	of := map[string][]gradientCheck{
		"ops/blockattnres.Apply":      operator(blockattnres.Apply),
		"ops/blockattnres.Decomposed": operator(blockattnres.Decomposed),
		"ops/blockattnres.Decompose": operator(func(in blockattnres.Inputs, o ...blockattnres.Option) *autograd.Var {
			p := blockattnres.Decompose(in, o...)
			parts := []*autograd.Var{ops.Reshape(p.H, -1), ops.Reshape(p.Alpha, -1)}
			if p.RMS != nil {
				parts = append(parts, ops.Reshape(p.RMS, -1))
			}
			return ops.Concat(0, parts...)
		}),
		"ops/blockattnres.Inputs.Cast": operator(func(in blockattnres.Inputs, o ...blockattnres.Option) *autograd.Var {
			return blockattnres.Apply(in.Cast(tensor.Float64), o...)
		}),
	}
	read := func(d *nn.Depth, query, gain *autograd.Var) *autograd.Var { return d.Read(query, gain, 0.01) }
	weights := func(d *nn.Depth, query, gain *autograd.Var) *autograd.Var {
		return ops.Expand(ops.Slice(d.Weights(query, gain, 0.01), 2, 0, 1), 1, 3, 4)
	}
	for _, c := range []struct {
		residual nn.Residual
		size     int
	}{{nn.PreNorm, 0}, {nn.Block, 3}, {nn.Full, 0}} {
		of["nn.Depth.Read"] = append(of["nn.Depth.Read"], deep(c.residual, c.size, 3, read))
		if c.residual != nn.PreNorm {
			of["nn.Depth.Weights"] = append(of["nn.Depth.Weights"], deep(c.residual, c.size, 3, weights))
		}
		of["nn.Transformer.Logits"] = append(of["nn.Transformer.Logits"], whole(c.residual, func(m *nn.Transformer, t *autograd.Tape, ids, _ *autograd.Var) *autograd.Var { return m.Logits(t, ids) }))
		of["nn.Transformer.Loss"] = append(of["nn.Transformer.Loss"], whole(c.residual, (*nn.Transformer).Loss))
		if c.residual != nn.PreNorm {
			of["nn.Transformer.Weights"] = append(of["nn.Transformer.Weights"], whole(c.residual, func(m *nn.Transformer, t *autograd.Tape, ids, _ *autograd.Var) *autograd.Var {
				var flat []*autograd.Var
				for _, w := range m.Weights(t, ids) {
					flat = append(flat, ops.Reshape(w, -1))
				}
				return ops.Concat(0, flat...)
			}))
		}
	}
	return of
}

func TestGradients(t *testing.T) {
	dev := cpu.New(cpu.Threads(1))
	defer dev.Close()
	for name, list := range gradientChecks() {
		t.Run(name, func(t *testing.T) {
			for i, c := range list {
				var in []*tensor.Tensor
				for j, s := range c.shapes {
					x := make([]float64, s.Len())
					for k := range x {
						x[k] = random.Source{Seed: uint64(i), Stream: uint64(j)}.Normal(uint64(k))
					}
					v, err := tensor.FromFloat64s(tensor.Float64, x, s...)
					if err != nil {
						t.Fatal(err)
					}
					in = append(in, v)
				}
				if c.step == 0 {
					c.step = 3e-4
				}
				r, err := gradcheck.Check(dev, c.apply, in, gradcheck.Options{Tolerance: 1e-9, Order: 4, Step: c.step})
				if err != nil || r.Failed > 0 {
					t.Errorf("use %d: %v %v", i, r, err)
				}
				t.Logf("use %d: %v", i, r)
			}
		})
	}
}

// The walk: what gives a Var and is not in the table fails here.
func TestEveryDifferentiableFunctionIsChecked(t *testing.T) {
	checks := gradientChecks()
	found := differentiable(t)
	for _, name := range found {
		if len(checks[name]) == 0 {
			t.Errorf("%s gives a Var and has no gradient check", name)
		}
	}
	for name := range checks {
		if !slices.Contains(found, name) {
			t.Errorf("%s is checked and does not exist", name)
		}
	}
}

// differentiable are the exported functions and methods of the module's
// packages that give Vars, or a struct with Vars in exported fields.
func differentiable(t *testing.T) (names []string) {
	t.Helper()
	// Vars are made in autograd and by ops, which is walked on its own; what is
	// internal, a test or a program is no operation.
	skip := []string{"autograd", "ops", "internal", "examples", "tests", ".git", ".ci"}
	packages := map[string][]*ast.File{}
	err := filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		dir, _ := filepath.Rel("..", filepath.Dir(path))
		dir = filepath.ToSlash(dir)
		if e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		if top, _, below := strings.Cut(dir, "/"); slices.Contains(skip, top) && !(below && top == "ops") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		packages[dir] = append(packages[dir], f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir, files := range packages {
		hold := holders(files)
		for _, f := range files {
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || !fn.Name.IsExported() || fn.Type.Results == nil {
					continue
				}
				name := dir + "." + fn.Name.Name
				if fn.Recv != nil {
					receiver := strings.TrimPrefix(typeName(fn.Recv.List[0].Type), "*")
					if !ast.IsExported(receiver) {
						continue
					}
					name = dir + "." + receiver + "." + fn.Name.Name
				}
				for _, r := range fn.Type.Results.List {
					if mentionsVar(r.Type) || hold[strings.TrimPrefix(typeName(r.Type), "*")] {
						names = append(names, name)
						break
					}
				}
			}
		}
	}
	return names
}

// holders are the types of a package that are structs with Vars in exported fields.
func holders(files []*ast.File) map[string]bool {
	hold := map[string]bool{}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, field := range s.Fields.List {
					for _, name := range field.Names {
						hold[spec.Name.Name] = hold[spec.Name.Name] || name.IsExported() && mentionsVar(field.Type)
					}
				}
			}
			return true
		})
	}
	return hold
}

func typeName(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.StarExpr:
		return "*" + typeName(x.X)
	case *ast.Ident:
		return x.Name
	}
	return ""
}

func mentionsVar(e ast.Expr) (found bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		found = found || ok && s.Sel.Name == "Var"
		return true
	})
	return found
}
