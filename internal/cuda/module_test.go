package cuda

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// eagerLoading fakes the functions that ModuleLoadFunctions calls. The last hexadecimal digit of a
// module is the number of its kernels, and the second-to-last digit of a kernel is its number. For
// example, module 0x7fabcdef0002 has the kernels 0x7fabcdef0012 and 0x7fabcdef0022.
const eagerLoading = `
static int64_t loaded[8]; /* handles of the loaded kernels */
static int64_t loaded_count;
static int64_t calls;
static int64_t failing_call; /* from 1; 0 for none */
enum { OUT_OF_MEMORY = 2 };
static CUresult next_result(void) { return ++calls == failing_call ? OUT_OF_MEMORY : 0; }
CUresult cuModuleGetFunctionCount(unsigned int *n, CUmodule mod) {
	*n = (int64_t)mod % 16;
	return next_result();
}
CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int n, CUmodule mod) {
	for (unsigned int i = 0; i < n; i++) functions[i] = (CUfunction)((char *)mod + 16 * (i + 1));
	return next_result();
}
CUresult cuFuncLoad(CUfunction function) {
	loaded[loaded_count++] = (int64_t)function;
	return next_result();
}
int64_t calls_made(void) { return calls; }
int64_t loaded_at(int64_t i) { return i < loaded_count ? loaded[i] : 0; }
void reset_and_fail_at(int64_t call) {
	failing_call = call;
	calls = loaded_count = 0;
}
`

// invoke calls a C function of the fake libcuda.
func invoke(d *Driver, name string, args ...uintptr) uintptr {
	symbol, ok := d.library.Find(name)
	if !ok {
		panic("the library has no " + name)
	}

	return symbol.Call(args...)
}

// loadedFunctions returns the kernels that have been loaded since the last reset_and_fail_at.
func loadedFunctions(d *Driver) (functions []Function) {
	for {
		f := Function(invoke(d, "loaded_at", uintptr(len(functions))))
		if f == 0 {
			return functions
		}

		functions = append(functions, f)
	}
}

// moduleWith returns a module with up to 15 kernels.
func moduleWith(kernelCount int) Module { return Module(address) + Module(kernelCount) }

func kernelsOf(module Module, kernelCount int) (kernels []Function) {
	for number := 1; number <= kernelCount; number++ {
		kernels = append(kernels, Function(module)+16*Function(number))
	}

	return kernels
}

func TestModuleLoadFunctionsLoadsAll(t *testing.T) {
	driver, _ := load(t, declarations, eagerLoading) // a fake libcuda
	const noFailure = 0
	for _, kernelCount := range []int{0, 1, 3} {
		module := moduleWith(kernelCount)
		invoke(driver, "reset_and_fail_at", noFailure)
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

func TestModuleLoadFunctionsStopsAtFirstError(t *testing.T) {
	driver, _ := load(t, declarations, eagerLoading)
	module := moduleWith(2)
	expectedCalls := []string{
		"cuModuleGetFunctionCount", "cuModuleEnumerateFunctions", "cuFuncLoad", "cuFuncLoad",
	}
	for i, name := range expectedCalls {
		failingCall := uintptr(i + 1)
		invoke(driver, "reset_and_fail_at", failingCall)
		err := driver.ModuleLoadFunctions(module)
		var callErr *Error
		if !errors.As(err, &callErr) || callErr.Call != name {
			t.Errorf("if call %d fails, ModuleLoadFunctions = %v, want an error from %s",
				failingCall, err, name)
		}

		if n := invoke(driver, "calls_made"); n != failingCall {
			t.Errorf("if call %d fails, ModuleLoadFunctions makes %d calls, want %d",
				failingCall, n, failingCall)
		}
	}
}

// ModuleLoadFunctions has no effect on a driver that lacks one of the functions.
func TestModuleLoadFunctionsOnOldDriver(t *testing.T) {
	for _, missing := range []string{
		"cuModuleGetFunctionCount", "cuModuleEnumerateFunctions", "cuFuncLoad",
	} {
		source := strings.ReplaceAll(eagerLoading, missing+"(", "hidden(")
		driver, _ := load(t, declarations, source)
		if err := driver.ModuleLoadFunctions(moduleWith(2)); err != nil {
			t.Errorf("without %s, ModuleLoadFunctions = %v, want nil", missing, err)
		}

		if n := invoke(driver, "calls_made"); n != 0 {
			t.Errorf("without %s, ModuleLoadFunctions makes %d calls, want 0", missing, n)
		}
	}
}

// ModuleLoadData checks the code before it calls CUDA, which new(Driver) cannot do.
func TestModuleLoadDataNeedsZeroByte(t *testing.T) {
	for _, code := range []string{"", ".version 8.0"} {
		_, err := new(Driver).ModuleLoadData([]byte(code))
		if err == nil || !strings.Contains(err.Error(), "zero byte") {
			t.Errorf("ModuleLoadData(%q) = %v, want an error about the zero byte", code, err)
		}
	}
}
