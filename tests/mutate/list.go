package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// mutant is one seeded bug.
type mutant struct {
	number     int
	list       string // where it is listed: file:line
	file       string // of the module
	function   string // Name or Type.Name; "" for the file outside of functions
	occurrence int    // of the old text, from 1; 0: there must be one
	old, new   string
	equivalent string // why it changes nothing
	by         []*suite
	needs      string // instructions that a machine must have
}

// String is where the bug is and what it is.
func (m *mutant) String() string {
	at := m.function
	if at == "" {
		at = "-"
	}
	if m.occurrence > 0 {
		at += "#" + strconv.Itoa(m.occurrence)
	}
	return fmt.Sprintf("%s %s: %s => %s", m.file, at, m.old, m.new)
}

// suite is a set of tests: those of a package that an expression matches.
type suite struct{ pkg, only string }

func (s *suite) String() string {
	if s.only == "" {
		return s.pkg
	}
	return s.pkg + ":" + s.only
}

var bug = regexp.MustCompile(`^(-|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?)(?:#(\d+))?: (.*) => (.*)$`)

// parse reads a list. Its lines are
//
//	file PATH                     the bugs that follow are in this file of the module
//	by SUITE SUITE ...            and are looked for by these tests, in this order
//	needs TIER                    on machines that have this tier of package cpu, or avx512_bf16
//	FUNCTION: OLD => NEW          a bug: OLD, which is there once, becomes NEW
//	FUNCTION#K: OLD => NEW        the K-th OLD of the function
//	-: OLD => NEW                 in the file, outside of functions
//	  equivalent: WHY             the bug above changes nothing
//	# ...                         a remark
//
// A suite is a package's folder, or folder:expression for the tests that it
// matches. A function is Name, or Type.Name for a method. NEW may have \n and \t.
func parse(name, text string) (list []*mutant, err error) {
	var file, needs string
	var by []*suite
	for i, line := range strings.Split(text, "\n") {
		at := fmt.Sprintf("%s:%d", name, i+1)
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case word == "" || strings.HasPrefix(word, "#"):
		case word == "file":
			file, needs = rest, ""
		case word == "needs":
			needs = rest
		case word == "by":
			by = nil
			for _, s := range strings.Fields(rest) {
				pkg, only, _ := strings.Cut(s, ":")
				by = append(by, &suite{pkg, only})
			}
		case word == "equivalent:" && len(list) > 0 && strings.HasPrefix(line, " "):
			list[len(list)-1].equivalent = rest
		default:
			m := bug.FindStringSubmatch(line)
			if m == nil || m[3] == "" || m[3] == m[4] || file == "" || by == nil {
				return nil, fmt.Errorf("%s: %q is not a bug of a file", at, line)
			}
			k, _ := strconv.Atoi(m[2])
			f := m[1]
			if f == "-" {
				f = ""
			}
			list = append(list, &mutant{list: at, file: file, function: f, occurrence: k, old: m[3], new: strings.NewReplacer(`\n`, "\n", `\t`, "\t").Replace(m[4]), by: by, needs: needs})
		}
	}
	return list, nil
}
