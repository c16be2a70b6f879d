package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The lists are long enough, and every bug in them applies to the sources as they are.
func TestListsApply(t *testing.T) {
	list, err := readLists()
	if err != nil {
		t.Fatal(err)
	}
	where, err := root()
	if err != nil {
		t.Fatal(err)
	}
	files, err := variants(where, list)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	operator := 0
	for _, m := range list {
		if other, ok := seen[m.String()]; ok {
			t.Errorf("%s is %s again", m.list, other)
		}
		seen[m.String()] = m.list
		if m.function != "" && !strings.Contains(files[m.file].text, "case "+strconv.Itoa(m.number)+":") {
			t.Errorf("%s: the variant is not chosen anywhere", m.list)
		}
		if strings.Contains(m.file, "blockattnres") {
			operator++
		}
	}
	if len(list) < 200 || operator < 150 {
		t.Errorf("%d bugs, %d of the operator", len(list), operator)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"f: a => b", "file x.go\nf: a => b", "by x\nf: a => b", "file x.go\nby x\nf: a => a", "file x.go\nby x\nf a => b", "file x.go\nby x\nf: a -> b",
		"  equivalent: why",
	} {
		if list, err := parse("list", text); err == nil {
			t.Errorf("%q gives %v", text, list)
		}
	}
	list, err := parse("list", "# remark\nfile x.go\nby a b:T|U\n\nF: a => b\nT.m#2: c d => \n  equivalent: no one looks\n-: 1 => 2\n")
	if err != nil || len(list) != 3 {
		t.Fatalf("%v, %v", list, err)
	}
	m := list[1]
	if m.function != "T.m" || m.occurrence != 2 || m.old != "c d" || m.new != "" || m.equivalent != "no one looks" || len(m.by) != 2 || *m.by[1] != (suite{"b", "T|U"}) || m.list != "list:6" {
		t.Errorf("%+v", m)
	}
	if list[2].function != "" {
		t.Errorf("%+v", list[2])
	}
}

// A module with a function of every form, and tests that see some of the bugs.
var toy = map[string]string{
	"go.mod": "module toy\n\ngo 1.26\n",
	"toy/toy.go": `package toy

const limit = 10

type box[T any] struct{ x T }

func (b box[T]) get(_ int, more ...T) T { return b.x }

func (box[T]) size() int { return len("one") }

func first[T any, U any](x T, _ U) T { return x }

// Sum is a sum.
func Sum(x ...int) (s int) {
	for _, v := range x {
		s += v
	}
	return s
}

func note(to *int) { *to = 1; *to += 0 }

func unseen(x int) int { return x + 1 }

func forever(n int) int {
	for n > 0 {
		n--
	}
	return n
}
`,
	"toy/toy_test.go": `package toy

import "testing"

func TestAll(t *testing.T) {
	n := 0
	note(&n)
	if Sum(1, 2, limit) != 13 || first(3, "x") != 3 || (box[int]{4}).get(1, 2, 3) != 4 || (box[int]{}).size() != 3 || n != 1 {
		t.Error("wrong")
	}
	_ = unseen(1)
}

func TestOther(t *testing.T) { forever(3) }
`,
}

func TestToy(t *testing.T) {
	dir := t.TempDir()
	for name, text := range toy {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run := func(text string) (string, int, error) {
		list, err := parse("toy.txt", "file toy/toy.go\nby toy:Other toy\n"+text)
		if err != nil {
			t.Fatal(err)
		}
		for i, m := range list {
			m.number = i + 1
		}
		s := settings{only: regexp.MustCompile(""), verbose: true, workers: 2, root: dir}
		var out, errs bytes.Buffer
		survived, err := s.test(context.Background(), list, &out, &errs)
		return out.String(), survived, err
	}
	out, survived, err := run(`Sum: s += v => s = v
first: x => *new(T)
box.get: b.x => more[0]
box.size: one => eins
note: *to = 1 => *to = 2
note: *to += 0 => *to -= 0
  equivalent: nothing is nothing
-: limit = 10 => limit = 11
unseen: x + 1 => x - 1
`)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"killed", "s += v => s = v  by toy TestAll", "toy/toy.go -: limit = 10 => limit = 11  by toy TestAll", "equivalent", "survived", "x + 1 => x - 1", "\n8 mutants, 6 killed, 1 survived, 1 equivalent\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if survived != 1 {
		t.Errorf("%d survived", survived)
	}
	// What is said to be equivalent and is not counts as a survivor: the list is wrong.
	out, survived, err = run("Sum: s += v => s = v\n  equivalent: they say\n")
	if err != nil || survived != 1 || !strings.Contains(out, "not equivalent") {
		t.Errorf("%v, %d\n%s", err, survived, out)
	}
	for text, want := range map[string]string{
		"Sum: s += w => s = w\n":           `toy.txt:3: Sum has no "s += w"`,
		"None: a => b\n":                   "has no function None",
		"note: *to => *from\n":             "2 times",
		"Sum#2: s += v => s = v\n":         "only 1 times",
		"Sum: s += v => s += u\n":          "undefined: u",
		"by missing\nSum: s += v => s = v": "building the tests of missing",
		"by toy:No\nSum: s += v => s = v":  "has no tests",
	} {
		if _, _, err := run(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestArguments(t *testing.T) {
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{{"-workers 0", 2, "-workers is 0"}, {"more", 2, "no flag"}, {"-only (", 2, "error parsing regexp"}, {"-odd", 2, "not defined"}, {"-help", 0, "-only"}} {
		var out, errs bytes.Buffer
		if status := run(context.Background(), strings.Fields(c.args), &out, &errs); status != c.status || !strings.Contains(out.String()+errs.String(), c.says) {
			t.Errorf("%s: status %d, %s%s", c.args, status, out.String(), errs.String())
		}
	}
}
