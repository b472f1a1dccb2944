package cuda

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// loading implements the functions that load kernels eagerly. The last hexadecimal digit of a
// module's handle is its number of kernels, whose handles follow at a distance of 16. fail selects
// a call that fails.
const loading = `
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

// invoke calls a function that the test has added to the driver.
func invoke(d *Driver, name string, args ...uintptr) uintptr {
	symbol, _ := d.library.Find(name)
	return symbol.Call(args...)
}

// loadedFunctions lists the kernels that were loaded.
func loadedFunctions(d *Driver) (all []Function) {
	for {
		f := Function(invoke(d, "loaded_at", uintptr(len(all))))
		if f == 0 {
			return all
		}
		all = append(all, f)
	}
}

func TestModuleLoadFunctionsLoadsAll(t *testing.T) {
	driver, _ := load(t, declarations, loading)
	for _, want := range [][]Function{
		nil,
		{Function(address) + 17},
		{Function(address) + 19, Function(address) + 35, Function(address) + 51},
	} {
		invoke(driver, "fail", 0)
		err := driver.ModuleLoadFunctions(Module(address) + Module(len(want)))
		if got := loadedFunctions(driver); err != nil || !slices.Equal(got, want) {
			t.Errorf("loaded %#x, %v, want %#x", got, err, want)
		}
	}
}

func TestModuleLoadFunctionsStopsAtTheFirstError(t *testing.T) {
	driver, _ := load(t, declarations, loading)
	for i, want := range []string{
		"cuModuleGetFunctionCount", "cuModuleEnumerateFunctions", "cuFuncLoad", "cuFuncLoad",
	} {
		invoke(driver, "fail", uintptr(i+1))
		err := driver.ModuleLoadFunctions(Module(address) + 2)
		var typed *Error
		if !errors.As(err, &typed) || typed.Call != want {
			t.Errorf("call %d fails: the error is %v, want one of %s", i+1, err, want)
		}
		if made := invoke(driver, "calls_made"); made != uintptr(i+1) {
			t.Errorf("call %d fails, but %d calls were made", i+1, made)
		}
	}
}

// TestModuleLoadFunctionsOfAnOldDriver uses drivers that lack one of the functions.
func TestModuleLoadFunctionsOfAnOldDriver(t *testing.T) {
	for _, lacking := range []string{
		"cuModuleGetFunctionCount", "cuModuleEnumerateFunctions", "cuFuncLoad",
	} {
		driver, _ := load(t, declarations, strings.ReplaceAll(loading, lacking+"(", "other("))
		err := driver.ModuleLoadFunctions(Module(address) + 2)
		if made := invoke(driver, "calls_made"); made != 0 || err != nil {
			t.Errorf("without %s: %d calls were made, and the error is %v", lacking, made, err)
		}
	}
}

func TestModuleLoadDataNeedsAZeroByte(t *testing.T) {
	for _, code := range []string{"", ".version 8.0"} {
		_, err := new(Driver).ModuleLoadData([]byte(code))
		if err == nil || !strings.Contains(err.Error(), "zero byte") {
			t.Errorf("%q: got %v", code, err)
		}
	}
}
