package cuda

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// eagerLoading is a fake of the functions with which ModuleLoadFunctions loads all kernels of a
// module. The last hexadecimal digit of a module's handle is its number of kernels. For example,
// the kernels of module 0x7fabcdef0002 are 0x7fabcdef0012 and 0x7fabcdef0022.
const eagerLoading = `
static int64_t loaded[8], count; /* handles of the loaded kernels, and their number */
static int64_t calls;
static int64_t failing; /* number of the call that fails, from 1, or 0 */
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

// invoke calls a C function of a fake.
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

// moduleWith returns the handle of a module with kernelCount <= 15 kernels.
func moduleWith(kernelCount int) Module { return Module(address) + Module(kernelCount) }

func kernelsOf(module Module, kernelCount int) (kernels []Function) {
	for number := 1; number <= kernelCount; number++ {
		kernels = append(kernels, Function(module)+16*Function(number))
	}

	return kernels
}

func TestModuleLoadFunctionsLoadsAll(t *testing.T) {
	driver, _ := load(t, declarations, eagerLoading) // a fake libcuda
	const noCall = 0
	for _, kernelCount := range []int{0, 1, 3} {
		module := moduleWith(kernelCount)
		invoke(driver, "fail", noCall) // resets the fake
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
		failing := uintptr(i + 1)
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

// On a driver that lacks one of the functions, ModuleLoadFunctions does nothing.
func TestModuleLoadFunctionsOnOldDriver(t *testing.T) {
	for _, missing := range []string{
		"cuModuleGetFunctionCount", "cuModuleEnumerateFunctions", "cuFuncLoad",
	} {
		source := strings.ReplaceAll(eagerLoading, missing+"(", "renamed(")
		driver, _ := load(t, declarations, source)
		if err := driver.ModuleLoadFunctions(moduleWith(2)); err != nil {
			t.Errorf("without %s, ModuleLoadFunctions = %v, want nil", missing, err)
		}

		if n := invoke(driver, "calls_made"); n != 0 {
			t.Errorf("without %s, ModuleLoadFunctions makes %d calls, want 0", missing, n)
		}
	}
}

// new(Driver) cannot call CUDA, so this also tests that ModuleLoadData checks the code first.
func TestModuleLoadDataNeedsZeroByte(t *testing.T) {
	for _, code := range []string{"", ".version 8.0"} {
		_, err := new(Driver).ModuleLoadData([]byte(code))
		if err == nil || !strings.Contains(err.Error(), "zero byte") {
			t.Errorf("ModuleLoadData(%q) = %v, want an error about the zero byte", code, err)
		}
	}
}
