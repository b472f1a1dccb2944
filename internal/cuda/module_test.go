package cuda

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// eagerLoading implements the functions that load kernels eagerly. The last hexadecimal digit of
// a module's handle is the number of kernels in the module. A kernel's handle is the module's
// handle plus a multiple of 16. failing is the number of the call that fails.
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

func invoke(d *Driver, name string, args ...uintptr) uintptr {
	symbol, _ := d.library.Find(name)
	return symbol.Call(args...)
}

func loadedFunctions(d *Driver) (functions []Function) {
	for {
		f := Function(invoke(d, "loaded_at", uintptr(len(functions))))
		if f == 0 {
			return functions
		}
		functions = append(functions, f)
	}
}

func TestModuleLoadFunctionsLoadsAll(t *testing.T) {
	driver, _ := load(t, declarations, eagerLoading)
	for _, want := range [][]Function{
		nil,
		{Function(address) + 17},
		{Function(address) + 19, Function(address) + 35, Function(address) + 51},
	} {
		invoke(driver, "fail", 0)
		err := driver.ModuleLoadFunctions(Module(address) + Module(len(want)))
		if got := loadedFunctions(driver); err != nil || !slices.Equal(got, want) {
			t.Errorf("ModuleLoadFunctions loaded %#x and returned %v; want %#x, nil", got, err, want)
		}
	}
}

func TestModuleLoadFunctionsStopsAtFirstError(t *testing.T) {
	driver, _ := load(t, declarations, eagerLoading)
	for i, want := range []string{
		"cuModuleGetFunctionCount", "cuModuleEnumerateFunctions", "cuFuncLoad", "cuFuncLoad",
	} {
		invoke(driver, "fail", uintptr(i+1))
		err := driver.ModuleLoadFunctions(Module(address) + 2)
		var typed *Error
		if !errors.As(err, &typed) || typed.Call != want {
			t.Errorf("if call %d fails, ModuleLoadFunctions = %v, want an error from %s", i+1, err, want)
		}
		if n := invoke(driver, "calls_made"); n != uintptr(i+1) {
			t.Errorf("if call %d fails, ModuleLoadFunctions makes %d calls, want %d", i+1, n, i+1)
		}
	}
}

func TestModuleLoadFunctionsOnOldDriver(t *testing.T) {
	for _, missing := range []string{
		"cuModuleGetFunctionCount", "cuModuleEnumerateFunctions", "cuFuncLoad",
	} {
		driver, _ := load(t, declarations, strings.ReplaceAll(eagerLoading, missing+"(", "other("))
		err := driver.ModuleLoadFunctions(Module(address) + 2)
		if n := invoke(driver, "calls_made"); n != 0 || err != nil {
			t.Errorf("without %s, ModuleLoadFunctions makes %d calls and returns %v; want 0, nil",
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
