package cases_test

import (
	"fmt"
	"os"
	"strings"

	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/internal/cases"
)

// A case comes back as it was, with what running it gave.
func Example() {
	dev := cpu.New()
	defer dev.Close()
	list, err := cases.Read(strings.NewReader(`[
		{"op":"add","dtype":"float32","args":{},"inputs":[{"dtype":"float32","shape":[2],"strides":[1],"offset":0,"storage":[1,2]},0.5]}]`))
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := cases.Write(os.Stdout, list, []cases.Got{list[0].Run(dev, "fused")}); err != nil {
		fmt.Println(err)
	}
	// Output:
	// [
	// {"op":"add","dtype":"float32","args":{},"inputs":[{"dtype":"float32","shape":[2],"strides":[1],"offset":0,"storage":[1,2]},0.5],"got":{"outputs":[{"shape":[2],"data":[1.5,2.5]}]}}
	// ]
}
