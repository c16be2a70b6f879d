package tests

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/lamina-go/lamina"

// layers says what each package may import of this module: itself a picture of
// the design. A name that ends in /... is everything below a folder.
var layers = map[string][]string{
	"tensor":              {"internal/memory", "internal/slab"},
	"internal/memory":     {},
	"internal/slab":       {},
	"internal/elementary": {},
	"internal/asmgen":     {},
	"random":              {"internal/elementary"},

	"device":            {"tensor", "internal/slab"},
	"device/cpu":        {"device", "tensor", "internal/elementary", "internal/memory"},
	"device/devicetest": {"device", "tensor", "random"},

	"autograd":           {"device", "tensor", "internal/slab"},
	"autograd/gradcheck": {"autograd", "device", "tensor", "random"},

	"ops":              {"autograd", "device", "tensor", "random", "internal/elementary", "internal/memory"},
	"ops/blockattnres": {"ops", "autograd", "device", "tensor"},

	"nn":    {"ops", "ops/blockattnres", "autograd", "device", "tensor", "random", "internal/memory"},
	"optim": {"autograd", "device", "tensor", "internal/elementary"},

	"precision":        {"tensor", "random"},
	"internal/cascade": {"precision", "ops/blockattnres", "autograd", "device", "tensor", "random"},

	"internal/cases": {"ops", "ops/blockattnres", "autograd", "device", "tensor"},
	"examples/...":   {"..."},
	"bench":          {"..."},
	"tests":          {},
	"tests/mutate":   {"device/cpu"},
}

// foreign says which packages may import another module.
var foreign = map[string][]string{
	"github.com/x448/float16":           {"tensor"},
	"golang.org/x/sys":                  {"device/cpu", "bench", "tests/mutate"},
	"golang.org/x/term":                 {"examples/...", "tests/mutate"},
	"github.com/schollz/progressbar/v3": {"examples/...", "tests/mutate"},
	"gonum.org/v1/plot":                 {"examples/...", "bench"},
}

// covers reports whether a pattern stands for a package.
func covers(pattern, pkg string) bool {
	below, all := strings.CutSuffix(pattern, "...")
	return pattern == pkg || all && strings.HasPrefix(pkg, below)
}

func anyCovers(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return covers(p, pkg) })
}

// entry finds the most exact entry of a map for a package.
func entry(m map[string][]string, pkg string) (allowed []string, known string) {
	for name, a := range m {
		if covers(name, pkg) && len(name) > len(known) {
			allowed, known = a, name
		}
	}
	return allowed, known
}

// wrongImport says what is wrong with an import, or nothing.
func wrongImport(pkg, imported string) string {
	if inside, ok := strings.CutPrefix(imported, module+"/"); ok {
		allowed, known := entry(layers, pkg)
		if known == "" {
			return pkg + " is not in the map of layers"
		}
		if !anyCovers(allowed, inside) {
			return pkg + " imports " + inside
		}
		return ""
	}
	if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
		return "" // the standard library
	}
	for mod, users := range foreign {
		if imported == mod || strings.HasPrefix(imported, mod+"/") {
			if !anyCovers(users, pkg) {
				return pkg + " imports " + imported
			}
			return ""
		}
	}
	return pkg + " imports " + imported + ", of a module that is not in the list"
}

func TestLayers(t *testing.T) {
	seen := map[string]bool{}
	for _, arch := range []string{"amd64", "arm64"} {
		cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
		cmd.Dir = ".."
		cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list: %v\n%s", err, stderr.String())
		}
		packages := 0
		for dec := json.NewDecoder(strings.NewReader(string(out))); ; packages++ {
			var p struct {
				ImportPath string
				Imports    []string
			}
			if err := dec.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			pkg := strings.TrimPrefix(p.ImportPath, module+"/")
			_, known := entry(layers, pkg)
			if known == "" {
				t.Errorf("%s is not in the map of layers", pkg)
			}
			seen[known] = true
			for _, i := range p.Imports {
				if wrong := wrongImport(pkg, i); wrong != "" {
					t.Errorf("%s (%s)", wrong, arch)
				}
			}
		}
		if packages < 10 {
			t.Errorf("go list knows only %d packages", packages)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(layers)) {
		if !seen[name] {
			t.Errorf("%s is in the map of layers and is no package", name)
		}
	}
}

// The rules that the map stands for, each broken once.
func TestLayersRefuse(t *testing.T) {
	for _, c := range [][2]string{
		{"tensor", module + "/device"},
		{"tensor", module + "/random"},
		{"device", module + "/autograd"},
		{"device", module + "/device/cpu"},
		{"device/cpu", module + "/autograd"},
		{"device/cpu", module + "/ops"},
		{"device/cpu", module + "/internal/cases"},
		{"internal/elementary", module + "/device"},
		{"autograd", module + "/ops"},
		{"autograd", module + "/device/cpu"},
		{"ops", module + "/ops/blockattnres"},
		{"ops", module + "/nn"},
		{"ops/blockattnres", module + "/nn"},
		{"nn", module + "/optim"},
		{"nn", module + "/device/cpu"},
		{"optim", module + "/nn"},
		{"nowhere", module + "/tensor"},
		{"nn", "gonum.org/v1/plot"},
		{"ops", "gonum.org/v1/plot/vg"},
		{"optim", "github.com/schollz/progressbar/v3"},
		{"device/cpu", "golang.org/x/term"},
		{"ops", "golang.org/x/sys/cpu"},
		{"device", "github.com/x448/float16"},
		{"tensor", "example.com/other"},
	} {
		if wrongImport(c[0], c[1]) == "" {
			t.Errorf("%s may import %s", c[0], c[1])
		}
	}
	for _, c := range [][2]string{
		{"examples/any", module + "/nn"}, {"examples/any", "gonum.org/v1/plot/vg"}, {"tensor", "math/bits"},
		{"device/cpu", module + "/internal/elementary"}, {"device/cpu", "golang.org/x/sys/cpu"},
	} {
		if wrong := wrongImport(c[0], c[1]); wrong != "" {
			t.Error(wrong)
		}
	}
}
