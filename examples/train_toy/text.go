package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"

	_ "embed"
)

// fallback is text to learn from where no Go source tree is found: this
// program's own source.
//
//go:embed text.go
var fallback string

//go:embed train.go
var fallbackMore string

const maxText = 16 << 20 // bytes read at the most

// readText is the text to train on and a word on where it is from.
func readText(path string) (text []byte, from string, err error) {
	if path == "" {
		if root := goRoot(); root != "" {
			text, err := readDir(filepath.Join(root, "src"), func(name string) bool {
				return strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
			}, "testdata", "vendor", "cmd", "internal")
			if err == nil && len(text) > 1<<20 {
				return text, "the Go standard library's source", nil
			}
		}
		return []byte(strings.Repeat(fallback+fallbackMore, 4)), "the program's own source (no Go source tree found)", nil
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, "", wrong("-data: %v", err)
	case info.IsDir():
		text, err = readDir(path, func(string) bool { return true })
	case info.Mode().IsRegular():
		text, err = os.ReadFile(path)
	default:
		return nil, "", wrong("-data: %s is neither a file nor a directory", path)
	}
	if err != nil {
		return nil, "", wrong("-data: %v", err)
	}
	if len(text) == 0 {
		return nil, "", wrong("-data: %s holds no text", path)
	}
	return text, path, nil
}

// goRoot is where the Go tree lies, or "".
func goRoot() string {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// readDir joins the text files below a directory, in order of their paths, up to maxText.
func readDir(dir string, take func(name string) bool, skip ...string) ([]byte, error) {
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			for _, s := range skip {
				if d.Name() == s {
					return filepath.SkipDir
				}
			}
			if path != dir && strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
			return nil
		}
		if d.Type().IsRegular() && take(d.Name()) {
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	sort.Strings(files)
	var b bytes.Buffer
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		if bytes.IndexByte(text, 0) >= 0 { // not text
			continue
		}
		b.Write(text)
		if b.Len() >= maxText {
			break
		}
	}
	return b.Bytes(), nil
}

// split cuts a text into training and validation parts: every tenth stretch of
// the text is held out, so that both parts come from all over it.
func split(text []byte, seq int) (train, valid []byte, err error) {
	need := seq + 1
	if len(text) < 2*need {
		return nil, nil, wrong("the text has %d bytes, want at least %d for sequences of %d (a smaller -seq, or more text)", len(text), 2*need, seq)
	}
	stretch := max(len(text)/100, need)
	for i, n := 0, 0; i < len(text); i, n = i+stretch, n+1 {
		part := text[i:min(i+stretch, len(text))]
		if n%10 == 1 {
			valid = append(valid, part...)
		} else {
			train = append(train, part...)
		}
	}
	if len(valid) < need { // a short text: the last part
		cut := len(text) - need
		train, valid = text[:cut], text[cut:]
	}
	return train, valid, nil
}

// entropy is the loss, in nats a byte, of predicting each byte of a text by how
// often it occurs there.
func entropy(text []byte) float64 {
	var count [256]int
	for _, c := range text {
		count[c]++
	}
	var h float64
	for _, n := range count {
		if n > 0 {
			p := float64(n) / float64(len(text))
			h -= p * math.Log(p)
		}
	}
	return h
}

// printable is generated text as a person can read it.
func printable(text []byte) string {
	var b strings.Builder
	for _, c := range text {
		switch {
		case c == '\n' || c == '\t' || c >= ' ' && c < 127:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "\\x%02x", c)
		}
	}
	return b.String()
}
