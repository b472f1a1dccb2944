package cuda

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// eagerLoading implements the functions of CUDA that ModuleLoadFunctions calls. The last
// hexadecimal digit of a module's handle is the number of its kernels. The handle of a kernel is
// that of its module plus 16 times its number, from 1. failing is the number of the call that
// fails, from 1, or 0.
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

// invoke calls a function of the library, such as fail in eagerLoading.
func invoke(d *Driver, name string, args ...uintptr) uintptr {
	symbol, _ := d.library.Find(name)
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

func TestModuleLoadFunctionsLoadsAll(t *testing.T) {
	driver, _ := load(t, declarations, eagerLoading)
	for _, kernelCount := range []Module{0, 1, 3} {
		module := Module(address) + kernelCount
		var want []Function
		for number := range kernelCount {
			want = append(want, Function(module+16*(number+1)))
		}
		invoke(driver, "fail", noCall)
		err := driver.ModuleLoadFunctions(module)
		if got := loadedFunctions(driver); err != nil || !slices.Equal(got, want) {
			t.Errorf("ModuleLoadFunctions loaded %#x and returned %v; want %#x, nil", got, err, want)
		}
	}
}

const moduleWithTwoKernels = Module(address) + 2

func TestModuleLoadFunctionsStopsAtFirstError(t *testing.T) {
	driver, _ := load(t, declarations, eagerLoading)
	for i, failingFunction := range []string{
		"cuModuleGetFunctionCount", "cuModuleEnumerateFunctions", "cuFuncLoad", "cuFuncLoad",
	} {
		failing := uintptr(i + 1)
		invoke(driver, "fail", failing)
		err := driver.ModuleLoadFunctions(moduleWithTwoKernels)
		var callErr *Error
		if !errors.As(err, &callErr) || callErr.Call != failingFunction {
			t.Errorf("if call %d fails, ModuleLoadFunctions = %v, want an error from %s",
				failing, err, failingFunction)
		}
		if n := invoke(driver, "calls_made"); n != failing {
			t.Errorf("if call %d fails, ModuleLoadFunctions makes %d calls, want %d", failing, n, failing)
		}
	}
}

// TestModuleLoadFunctionsOnOldDriver renames a function, as if the driver did not have it.
func TestModuleLoadFunctionsOnOldDriver(t *testing.T) {
	for _, missing := range []string{
		"cuModuleGetFunctionCount", "cuModuleEnumerateFunctions", "cuFuncLoad",
	} {
		driver, _ := load(t, declarations, strings.ReplaceAll(eagerLoading, missing+"(", "other("))
		err := driver.ModuleLoadFunctions(moduleWithTwoKernels)
		if n := invoke(driver, "calls_made"); n != 0 || err != nil {
			t.Errorf("without %s, ModuleLoadFunctions makes %d calls and returns %v; want 0 calls, nil",
				missing, n, err)
		}
	}
}

func TestModuleLoadDataNeedsZeroByte(t *testing.T) {
	for _, code := range []string{"", ".version 8.0"} {
		_, err := new(Driver).ModuleLoadData([]byte(code))
		if err == nil || !strings.Contains(err.Error(), "zero byte") {
			t.Errorf("ModuleLoadData(%q) = %v, want an error about the zero byte", code, err)
		}
	}
}
