package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// built is the test binaries, by package.
type built struct {
	root, dir string
	overlay   map[string]string // the sources with every function's variants
	binary    map[string]string
	suites    []*suite
	limit     map[string]time.Duration // of a suite
	global    sync.Mutex               // builds of bugs outside of functions, one at a time
}

// build makes the variants of all chosen mutants and the test binaries.
func build(ctx context.Context, root, dir string, all, chosen []*mutant) (*built, error) {
	b := &built{root: root, dir: dir, overlay: map[string]string{}, binary: map[string]string{}, limit: map[string]time.Duration{}}
	// Everything that is listed must apply, so that a list does not age unseen.
	files, err := variants(root, all)
	if err != nil {
		return nil, err
	}
	packages := map[string]string{} // folder -> package name
	for name, f := range files {
		if err := b.put(name, f.text); err != nil {
			return nil, err
		}
		packages[path.Dir(name)] = f.pkg
	}
	for folder, name := range packages {
		if err := b.put(path.Join(folder, "mutant_chosen.go"), fmt.Sprintf(chooser, name)); err != nil {
			return nil, err
		}
	}
	var pkgs []string
	for _, m := range chosen {
		for _, s := range m.by {
			if !slices.Contains(pkgs, s.pkg) {
				pkgs = append(pkgs, s.pkg)
			}
			if !slices.ContainsFunc(b.suites, func(t *suite) bool { return *t == *s }) {
				b.suites = append(b.suites, s)
			}
		}
	}
	var errs []error
	for _, pkg := range pkgs {
		b.binary[pkg], err = b.compile(ctx, pkg, b.overlay, "all")
		if err != nil {
			errs = append(errs, err)
			break
		}
	}
	if len(errs) > 0 {
		return nil, errs[0]
	}
	return b, nil
}

// chooser is the file that tells a package which bug is on.
const chooser = `package %s

import (
	"os"
	"strconv"
)

var chosenMutant = func() int { n, _ := strconv.Atoi(os.Getenv("LAMINA_MUTANT")); return n }()
`

// put writes a source file of the copy.
func (b *built) put(name, text string) error {
	to := filepath.Join(b.dir, "src", filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	b.overlay[filepath.Join(b.root, filepath.FromSlash(name))] = to
	return os.WriteFile(to, []byte(text), 0o644)
}

// compile makes a package's test binary from the sources with an overlay.
func (b *built) compile(ctx context.Context, pkg string, overlay map[string]string, tag string) (string, error) {
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return "", err
	}
	to := filepath.Join(b.dir, tag, strings.ReplaceAll(pkg, "/", "_")+".test")
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return "", err
	}
	list := filepath.Join(b.dir, tag, "overlay.json")
	if err := os.WriteFile(list, text, 0o644); err != nil {
		return "", err
	}
	c := exec.CommandContext(ctx, "go", "test", "-c", "-gcflags=./...=-e", "-overlay", list, "-o", to, "./"+pkg)
	c.Dir = b.root
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the tests of %s: %w\n%s", pkg, err, out)
	}
	return to, nil
}

// baseline runs every suite without a bug: it must pass, and says how long it may take.
func (b *built) baseline(ctx context.Context) error {
	for _, s := range b.suites {
		b.limit[s.String()] = 5 * time.Minute
		start := time.Now()
		ok, out, err := b.runSuite(ctx, s, b.binary[s.pkg], 0)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("the tests of %v fail without any bug:\n%s", s, out)
		}
		b.limit[s.String()] = 10*time.Second + 5*time.Since(start)
	}
	return nil
}

// runSuite reports whether a suite passes with a bug on.
func (b *built) runSuite(ctx context.Context, s *suite, binary string, number int) (ok bool, out string, err error) {
	limit, cancel := context.WithTimeout(ctx, b.limit[s.String()])
	defer cancel()
	args := []string{"-test.short", "-test.failfast", "-test.count=1"}
	if s.only != "" {
		args = append(args, "-test.run="+s.only)
	}
	c := exec.CommandContext(limit, binary, args...)
	c.Dir = filepath.Join(b.root, filepath.FromSlash(s.pkg))
	c.Env = append(os.Environ(), fmt.Sprintf("LAMINA_MUTANT=%d", number))
	text, err := c.CombinedOutput()
	if ctx.Err() != nil {
		return false, "", ctx.Err()
	}
	if err == nil && strings.Contains(string(text), "no tests to run") {
		return false, "", fmt.Errorf("%v has no tests", s)
	}
	return err == nil, string(text), nil
}

// try runs a mutant's suites until one fails, and gives its name and its test.
func (b *built) try(ctx context.Context, m *mutant) (by string, took time.Duration, err error) {
	start := time.Now()
	for _, s := range m.by {
		binary := b.binary[s.pkg]
		if m.function == "" {
			if binary, err = b.compileGlobal(ctx, m, s); err != nil {
				return "", 0, err
			}
		}
		ok, out, err := b.runSuite(ctx, s, binary, m.number)
		if err != nil {
			return "", 0, err
		}
		if !ok {
			return fmt.Sprintf("%v %s", s, failedTest(out)), time.Since(start), nil
		}
	}
	return "", time.Since(start), nil
}

// compileGlobal builds a suite for a bug that is in no function.
func (b *built) compileGlobal(ctx context.Context, m *mutant, s *suite) (string, error) {
	b.global.Lock()
	defer b.global.Unlock()
	name := filepath.Join(b.root, filepath.FromSlash(m.file))
	from, ok := b.overlay[name]
	if !ok {
		from = name
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return "", err
	}
	changed, err := m.apply(string(text))
	if err != nil {
		return "", err
	}
	tag := fmt.Sprintf("mutant%d", m.number)
	to := filepath.Join(b.dir, tag, filepath.Base(name))
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(to, []byte(changed), 0o644); err != nil {
		return "", err
	}
	overlay := map[string]string{name: to}
	for k, v := range b.overlay {
		if k != name {
			overlay[k] = v
		}
	}
	return b.compile(ctx, s.pkg, overlay, tag)
}

// failedTest is the name of the first test that failed, or how the process died.
func failedTest(out string) string {
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(line, "--- FAIL: "); ok {
			name, _, _ = strings.Cut(name, " ")
			return name
		}
		if strings.HasPrefix(line, "panic: ") {
			return strings.TrimSpace(line)
		}
	}
	return "(it did not end)"
}
