package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// source is a file with variants.
type source struct {
	pkg  string
	text string
}

// apply replaces the old text once.
func (m *mutant) apply(text string) (string, error) {
	n := strings.Count(text, m.old)
	at := m.occurrence
	switch {
	case n == 0:
		return "", fmt.Errorf("%s: %s has no %q", m.list, m.function, m.old)
	case at == 0 && n > 1:
		return "", fmt.Errorf("%s: %s has %q %d times: say which, as %s#1", m.list, m.function, m.old, n, m.function)
	case at > n:
		return "", fmt.Errorf("%s: %s has %q only %d times", m.list, m.function, m.old, n)
	}
	from := 0
	for range max(at, 1) {
		i := strings.Index(text[from:], m.old)
		from += i + len(m.old)
	}
	return text[:from-len(m.old)] + m.new + text[from:], nil
}

// variants gives the files of the mutants with a variant of a function for each
// bug, and at the head of each function the choice between them.
func variants(root string, mutants []*mutant) (map[string]source, error) {
	byFile := map[string][]*mutant{}
	for _, m := range mutants {
		byFile[m.file] = append(byFile[m.file], m)
	}
	out := map[string]source{}
	var errs []error // all that does not apply, in one message
	for name, list := range byFile {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		switch {
		case err != nil:
		case strings.HasSuffix(name, ".go"):
			out[name], err = variantsOf(name, string(text), list)
		default: // assembly has no variants: each bug is a build of its own
			for _, m := range list {
				_, e := m.apply(string(text))
				err = errors.Join(err, e)
			}
		}
		errs = append(errs, err)
	}
	return out, errors.Join(errs...)
}

// edit is a text put in place of another.
type edit struct {
	from, to int
	text     string
}

func variantsOf(name, text string, list []*mutant) (source, error) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return source{}, err
	}
	offset := func(p token.Pos) int { return set.Position(p).Offset }
	var edits []edit
	var more strings.Builder
	found := map[*mutant]bool{}
	var errs []error
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		var mine []*mutant
		for _, m := range list {
			if m.function != "" && (m.function == fn.Name.Name && fn.Recv == nil || m.function == methodName(fn)) {
				mine = append(mine, m)
				found[m] = true
			}
		}
		if len(mine) == 0 {
			continue
		}
		// Parameters without a name get one, to be handed on.
		var named []edit
		name := func(field *ast.Field, names *[]string, prefix string) {
			_, variadic := field.Type.(*ast.Ellipsis)
			dots := ""
			if variadic {
				dots = "..."
			}
			if len(field.Names) == 0 {
				n := fmt.Sprintf("%s%d", prefix, len(*names))
				named = append(named, edit{offset(field.Pos()), offset(field.Pos()), n + " "})
				*names = append(*names, n+dots)
			}
			for _, id := range field.Names {
				n := id.Name
				if n == "_" {
					n = fmt.Sprintf("%s%d", prefix, len(*names))
					named = append(named, edit{offset(id.Pos()), offset(id.End()), n})
				}
				*names = append(*names, n+dots)
			}
		}
		var receiver, args, types []string
		if fn.Recv != nil {
			name(fn.Recv.List[0], &receiver, "receiverOfMutant")
		}
		for _, p := range fn.Type.Params.List {
			name(p, &args, "argumentOfMutant")
		}
		if fn.Type.TypeParams != nil {
			for _, p := range fn.Type.TypeParams.List {
				for _, id := range p.Names {
					types = append(types, id.Name)
				}
			}
		}
		head, body, end := offset(fn.Pos()), offset(fn.Body.Lbrace)+1, offset(fn.Body.Rbrace)
		var choice strings.Builder
		choice.WriteString(" switch chosenMutant {")
		for _, m := range mine {
			changed, err := m.apply(text[body:end])
			if err != nil {
				errs = append(errs, err)
				continue
			}
			variant := fmt.Sprintf("mutant%d_%s", m.number, fn.Name.Name) // never exported
			call := variant
			if receiver != nil {
				call = receiver[0] + "." + call
			}
			if types != nil {
				call += "[" + strings.Join(types, ", ") + "]"
			}
			call += "(" + strings.Join(args, ", ") + ")"
			if fn.Type.Results != nil {
				fmt.Fprintf(&choice, " case %d: return %s;", m.number, call)
			} else {
				fmt.Fprintf(&choice, " case %d: %s; return;", m.number, call)
			}
			signature := append([]edit{{offset(fn.Name.Pos()), offset(fn.Name.End()), variant}}, named...)
			fmt.Fprintf(&more, "\n%s%s}\n", change(text, head, body, signature), changed)
		}
		choice.WriteString(" };")
		edits = append(append(edits, named...), edit{body, body, choice.String()})
	}
	for _, m := range list {
		if m.function == "" {
			_, err := m.apply(text)
			errs = append(errs, err)
		} else if !found[m] {
			errs = append(errs, fmt.Errorf("%s: %s has no function %s", m.list, name, m.function))
		}
	}
	return source{f.Name.Name, change(text, 0, len(text), edits) + more.String()}, errors.Join(errs...)
}

// change is text[from:to] with edits made.
func change(text string, from, to int, edits []edit) string {
	slices.SortStableFunc(edits, func(a, b edit) int { return a.from - b.from })
	var out strings.Builder
	at := from
	for _, e := range edits {
		if e.from < from || e.to > to {
			continue
		}
		out.WriteString(text[at:e.from])
		out.WriteString(e.text)
		at = e.to
	}
	out.WriteString(text[at:to])
	return out.String()
}

// methodName is Type.Name of a method.
func methodName(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return ""
	}
	e := fn.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.Ident:
			return x.Name + "." + fn.Name.Name
		default:
			return fn.Name.Name
		}
	}
}
