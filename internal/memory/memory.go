// Package memory tells how much memory there is, so that what can never fit is
// refused with an error where Go would end the process.
package memory

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
)

// most is below what the Go runtime panics at.
const most = min(math.MaxInt/2, 1<<47)

// Limit is the largest number of bytes that may be asked for: the memory of the
// machine where that is known (Linux), a container's share of it, and
// GOMEMLIMIT, whichever is least. It is read once.
var Limit = sync.OnceValue(func() int {
	limit := int64(most)
	if set := debug.SetMemoryLimit(-1); set > 0 {
		limit = min(limit, set)
	}
	for _, source := range []struct {
		file string
		read func(string) (int64, bool)
	}{
		{"/proc/meminfo", meminfo},
		{"/sys/fs/cgroup/memory.max", number},
		{"/sys/fs/cgroup/memory/memory.limit_in_bytes", number},
	} {
		text, err := os.ReadFile(source.file)
		if err != nil {
			continue
		}
		if n, ok := source.read(string(text)); ok && n > 0 {
			limit = min(limit, n)
		}
	}
	return int(limit)
})

// meminfo adds main memory and swap, in bytes.
func meminfo(text string) (total int64, ok bool) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "MemTotal:" && f[0] != "SwapTotal:" {
			continue
		}
		if kb, err := strconv.ParseInt(f[1], 10, 64); err == nil && kb >= 0 && kb < most>>10 {
			total, ok = total+kb<<10, true
		}
	}
	return total, ok
}

func number(text string) (int64, bool) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64) // "max" is no limit
	return n, err == nil
}

// Fits reports whether a product of sizes, in bytes, is within Limit.
func Fits(sizes ...int) bool {
	n := 1
	for _, s := range sizes {
		if s == 0 {
			return true
		}
	}
	for _, s := range sizes {
		if s < 0 || n > Limit()/s {
			return false
		}
		n *= s
	}
	return true
}
