package cuda

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// eagerLoading implements the functions of CUDA that ModuleLoadFunctions calls, in C. The last
// hexadecimal digit of a module's handle is the number of its kernels. The handle of a kernel is
// that of its module plus 16 times its number, from 1. Tests call the last three functions:
//
//   - calls_made returns the number of calls.
//   - loaded_at(i) returns the handle of the i-th loaded kernel, or 0 after the last.
//   - fail(n) makes the n-th call fail, or none if n is 0. It also resets the other values.
const eagerLoading = `
static int64_t loaded[8], count, calls, failing;
static CUresult step(void) { return ++calls == failing ? 2 : 0; }
CUresult cuModuleGetFunctionCount(unsigned int *n, CUmodule mod) {
	*n = (int64_t)mod % 16;
	return step();
}
CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int n, CUmodule mod) {
	for (unsigned int i = 0; i < n; i++) functions[i] = (CUfunction)((char *)mod + 16 * (i + 1));
	return step();
}
CUresult cuFuncLoad(CUfunction function) {
	loaded[count++] = (int64_t)function;
	return step();
}
int64_t calls_made(void) { return calls; }
int64_t loaded_at(int64_t i) { return i < count ? loaded[i] : 0; }
void fail(int64_t call) {
	failing = call;
	calls = count = 0;
}
`

// invoke calls a function of the library, such as fail in eagerLoading. It panics if the library
// has no such function.
func invoke(d *Driver, name string, args ...uintptr) uintptr {
	symbol, ok := d.library.Find(name)
	if !ok {
		panic("the library has no " + name)
	}

	return symbol.Call(args...)
}

// loadedFunctions returns the kernels that have been loaded since the last call of fail.
func loadedFunctions(d *Driver) (functions []Function) {
	for {
		f := Function(invoke(d, "loaded_at", uintptr(len(functions))))
		if f == 0 {
			return functions
		}

		functions = append(functions, f)
	}
}

const noCall = 0 // argument of fail

// moduleWith returns the handle of a module with up to 15 kernels. See eagerLoading.
func moduleWith(kernelCount int) Module { return Module(address) + Module(kernelCount) }

// kernelOf returns the handle of a kernel, whose number counts from 1.
func kernelOf(module Module, number int) Function { return Function(module) + 16*Function(number) }

func TestModuleLoadFunctionsLoadsAll(t *testing.T) {
	driver, _ := load(t, declarations, eagerLoading) // builds a C library in place of libcuda
	for _, kernelCount := range []int{0, 1, 3} {
		module := moduleWith(kernelCount)
		var want []Function
		for number := 1; number <= kernelCount; number++ {
			want = append(want, kernelOf(module, number))
		}

		invoke(driver, "fail", noCall)
		err := driver.ModuleLoadFunctions(module)
		if got := loadedFunctions(driver); err != nil || !slices.Equal(got, want) {
			t.Errorf("ModuleLoadFunctions loaded %#x and returned %v; want %#x, nil", got, err, want)
		}
	}
}

func TestModuleLoadFunctionsStopsAtFirstError(t *testing.T) {
	driver, _ := load(t, declarations, eagerLoading)
	for i, name := range []string{ // all calls for two kernels, in order
		"cuModuleGetFunctionCount", "cuModuleEnumerateFunctions", "cuFuncLoad", "cuFuncLoad",
	} {
		failing := uintptr(i + 1) // number of the call that fails
		invoke(driver, "fail", failing)
		err := driver.ModuleLoadFunctions(moduleWith(2))
		var callErr *Error
		if !errors.As(err, &callErr) || callErr.Call != name {
			t.Errorf("if call %d fails, ModuleLoadFunctions = %v, want an error from %s",
				failing, err, name)
		}

		if n := invoke(driver, "calls_made"); n != failing {
			t.Errorf("if call %d fails, ModuleLoadFunctions makes %d calls, want %d", failing, n, failing)
		}
	}
}

// TestModuleLoadFunctionsOnOldDriver renames a function, as if the driver did not have it. Then
// ModuleLoadFunctions must do nothing, because loading all kernels early only saves time.
func TestModuleLoadFunctionsOnOldDriver(t *testing.T) {
	for _, missing := range []string{
		"cuModuleGetFunctionCount", "cuModuleEnumerateFunctions", "cuFuncLoad",
	} {
		driver, _ := load(t, declarations, strings.ReplaceAll(eagerLoading, missing+"(", "other("))
		err := driver.ModuleLoadFunctions(moduleWith(2))
		if n := invoke(driver, "calls_made"); n != 0 || err != nil {
			t.Errorf("without %s, ModuleLoadFunctions makes %d calls and returns %v; want 0 calls, nil",
				missing, n, err)
		}
	}
}

// C finds the end of the code by the zero byte. ModuleLoadData must fail before it calls the
// driver, and new(Driver) has none.
func TestModuleLoadDataNeedsZeroByte(t *testing.T) {
	for _, code := range []string{"", ".version 8.0"} {
		_, err := new(Driver).ModuleLoadData([]byte(code))
		if err == nil || !strings.Contains(err.Error(), "zero byte") {
			t.Errorf("ModuleLoadData(%q) = %v, want an error about the zero byte", code, err)
		}
	}
}
