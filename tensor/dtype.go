package tensor

import "fmt"

// DType is the type of a tensor's elements. The zero value is no valid type.
type DType uint8

const (
	Float32  DType = iota + 1 // IEEE 754 binary32
	Float64                   // IEEE 754 binary64
	Float16                   // IEEE 754 binary16
	BFloat16                  // the upper half of a binary32
	Int32                     // ids and masks
	Int64                     // ids and masks
)

var dtypeInfo = [...]struct {
	name string
	size int
}{{"invalid", 0}, {"float32", 4}, {"float64", 8}, {"float16", 2}, {"bfloat16", 2}, {"int32", 4}, {"int64", 8}}

// String gives the name by which ParseDType knows the type, such as "bfloat16".
func (d DType) String() string {
	if int(d) >= len(dtypeInfo) {
		d = 0
	}
	return dtypeInfo[d].name
}

// Size is the number of bytes of one element; 0 if d is not valid.
func (d DType) Size() int {
	if int(d) >= len(dtypeInfo) {
		return 0
	}
	return dtypeInfo[d].size
}

// Valid reports whether d is one of the constants of this package.
func (d DType) Valid() bool { return d.Size() > 0 }

// IsFloat reports whether d is a floating-point type.
func (d DType) IsFloat() bool { return d >= Float32 && d <= BFloat16 }

// IsInt reports whether d is an integer type.
func (d DType) IsInt() bool { return d == Int32 || d == Int64 }

// IsHalf reports whether d is one of the 16-bit formats, whose arithmetic is done in float32.
func (d DType) IsHalf() bool { return d == Float16 || d == BFloat16 }

// Wide is the type in which arithmetic on d is done: float32 for the 16-bit
// formats, d itself otherwise.
func (d DType) Wide() DType {
	if d.IsHalf() {
		return Float32
	}
	return d
}

// ParseDType finds a type by its name. Besides the names that String gives it
// knows the short forms f32, fp32, f64, fp64, f16, fp16, bf16, i32 and i64.
// An unknown name is an error that wraps [ErrDType].
func ParseDType(name string) (DType, error) {
	switch name {
	case "float32", "f32", "fp32":
		return Float32, nil
	case "float64", "f64", "fp64":
		return Float64, nil
	case "float16", "f16", "fp16":
		return Float16, nil
	case "bfloat16", "bf16":
		return BFloat16, nil
	case "int32", "i32":
		return Int32, nil
	case "int64", "i64":
		return Int64, nil
	}
	return 0, &ArgError{Op: "tensor.ParseDType", Arg: "name", Got: fmt.Sprintf("%q", name),
		Want: "float32, float64, float16, bfloat16, int32 or int64", Kind: ErrDType}
}
