package cuda

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// A module contains kernels. By default, CUDA loads a kernel when it is first launched.
// ModuleLoadFunctions loads all kernels of a module early. For a module with two kernels, it calls:
//
//	cuModuleGetFunctionCount        returns 2
//	cuModuleEnumerateFunctions      returns the handles of the kernels
//	cuFuncLoad                      loads the first kernel
//	cuFuncLoad                      loads the second kernel

// eagerLoading implements these functions in C. In it, a handle describes itself. The handle of a
// module ends with a hexadecimal digit, the number of the module's kernels. The kernels of the
// module 0x7fabcdef0002 have the handles 0x7fabcdef0012 and 0x7fabcdef0022.
//
// Tests call the last three functions:
//
//   - calls_made returns the number of calls.
//   - loaded_at(i) returns the handle of the i-th loaded kernel, from 0. After the last, it returns
//     0.
//   - fail(n) makes the n-th call fail, from 1. fail(0) lets all succeed. Both also forget earlier
//     calls and loaded kernels.
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

// moduleWith returns the handle of a module with up to 15 kernels.
func moduleWith(kernelCount int) Module { return Module(address) + Module(kernelCount) }

// kernelsOf returns the handles of all kernels of a module.
func kernelsOf(module Module, kernelCount int) (kernels []Function) {
	for number := 1; number <= kernelCount; number++ {
		kernels = append(kernels, Function(module)+16*Function(number))
	}

	return kernels
}

// TestModuleLoadFunctionsLoadsAll loads modules with different numbers of kernels.
func TestModuleLoadFunctionsLoadsAll(t *testing.T) {
	driver, _ := load(t, declarations, eagerLoading) // builds a C library in place of libcuda
	for _, kernelCount := range []int{0, 1, 3} {
		module := moduleWith(kernelCount)
		const noCall = 0
		invoke(driver, "fail", noCall)
		if err := driver.ModuleLoadFunctions(module); err != nil {
			t.Errorf("ModuleLoadFunctions of %d kernels = %v, want nil", kernelCount, err)
		}

		got := loadedFunctions(driver)
		want := kernelsOf(module, kernelCount)
		if !slices.Equal(got, want) {
			t.Errorf("ModuleLoadFunctions of %d kernels loaded %#x, want %#x", kernelCount, got, want)
		}
	}
}

// TestModuleLoadFunctionsStopsAtFirstError lets each call for a module with two kernels fail in
// turn. ModuleLoadFunctions must return the error, and make no further call.
func TestModuleLoadFunctionsStopsAtFirstError(t *testing.T) {
	driver, _ := load(t, declarations, eagerLoading)
	module := moduleWith(2)
	names := []string{
		"cuModuleGetFunctionCount", "cuModuleEnumerateFunctions", "cuFuncLoad", "cuFuncLoad",
	}
	for i, name := range names {
		failing := uintptr(i + 1) // number of the call that fails
		invoke(driver, "fail", failing)
		err := driver.ModuleLoadFunctions(module)
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

// TestModuleLoadFunctionsOnOldDriver uses drivers that lack one of the functions. Then
// ModuleLoadFunctions must do nothing, because loading kernels early only saves time.
func TestModuleLoadFunctionsOnOldDriver(t *testing.T) {
	for _, missing := range []string{
		"cuModuleGetFunctionCount", "cuModuleEnumerateFunctions", "cuFuncLoad",
	} {
		source := strings.ReplaceAll(eagerLoading, missing+"(", "other(") // renames the function
		driver, _ := load(t, declarations, source)
		if err := driver.ModuleLoadFunctions(moduleWith(2)); err != nil {
			t.Errorf("without %s, ModuleLoadFunctions = %v, want nil", missing, err)
		}

		if n := invoke(driver, "calls_made"); n != 0 {
			t.Errorf("without %s, ModuleLoadFunctions makes %d calls, want 0", missing, n)
		}
	}
}

// TestModuleLoadDataNeedsZeroByte passes code without a zero byte, which marks the end for C.
// ModuleLoadData must fail before it calls CUDA, which new(Driver) could not.
func TestModuleLoadDataNeedsZeroByte(t *testing.T) {
	for _, code := range []string{"", ".version 8.0"} {
		_, err := new(Driver).ModuleLoadData([]byte(code))
		if err == nil || !strings.Contains(err.Error(), "zero byte") {
			t.Errorf("ModuleLoadData(%q) = %v, want an error about the zero byte", code, err)
		}
	}
}
