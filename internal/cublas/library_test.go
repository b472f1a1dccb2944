package cublas

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"symmem/internal/dl"
	"symmem/internal/dl/dltest"
)

// soft builds and opens the cuBLAS of software.
func soft(t *testing.T) *Library {
	t.Helper()
	source, err := os.ReadFile("testdata/softblas.c")
	if err != nil {
		t.Fatal(err)
	}
	l, err := Load(dltest.Compile(t, "libcublas_soft.so", string(source)))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// product mirrors the C structure of that name.
type product struct {
	TransA, TransB, M, N, K int32
	Alpha, Beta             float32
	A, B, C                 uintptr
	TypeA, LeadA            int32
	TypeB, LeadB            int32
	TypeC, LeadC            int32
	Compute, Algo           int32
}

func (l *Library) control(t *testing.T, name string, args ...uintptr) uintptr {
	t.Helper()
	symbol, ok := l.library.Find(name)
	if !ok {
		t.Fatalf("the library of the test has no %s", name)
	}
	return symbol.Call(args...)
}

// state mirrors what a handle points to.
type state struct {
	Stream, Workspace uintptr
	Bytes             uint64
}

func TestAProductIsPassedAsTheHeaderDeclaresIt(t *testing.T) {
	l := soft(t)
	h, err := l.Create()
	if err != nil {
		t.Fatal(err)
	}
	// The addresses have bits above the 32nd, so that an argument which is cut shows.
	a := Matrix{0x7fab_cdef_0000, 11, BFloat16, Transposed}
	b := Matrix{0x7012_3456_0000, 12, Float16, AsItIs}
	c := Matrix{0x7034_5678_0000, 13, Float32, AsItIs}
	if err := l.Gemm(h, 5, 6, 7, a, b, c); err != nil {
		t.Fatal(err)
	}
	got := dl.Load[product](l.control(t, "softblas_last"))
	want := product{
		TransA: 1, TransB: 0, M: 5, N: 6, K: 7, Alpha: 1, Beta: 0,
		A: a.Address, B: b.Address, C: c.Address, TypeA: 14, LeadA: 11, TypeB: 2, LeadB: 12,
		TypeC: 0, LeadC: 13, Compute: 68, Algo: -1,
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if err := l.Destroy(h); err != nil {
		t.Error(err)
	}
}

func TestAHandleKeepsItsStreamAndWorkspace(t *testing.T) {
	l := soft(t)
	h, err := l.Create()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.SetStream(h, 0x7700_0000_0010); err != nil {
		t.Fatal(err)
	}
	if err := l.SetWorkspace(h, 0x7fab_cdef_0000, 5<<33); err != nil {
		t.Fatal(err)
	}
	want := state{0x7700_0000_0010, 0x7fab_cdef_0000, 5 << 33}
	if got := dl.Load[state](uintptr(h)); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if version, err := l.Version(h); version != 120900 || err != nil {
		t.Errorf("version %d, %v", version, err)
	}
	if err := l.Destroy(h); err != nil {
		t.Error(err)
	}
}

func TestARefusalNamesTheCallAndTheStatus(t *testing.T) {
	l := soft(t)
	l.control(t, "softblas_refuse", uintptr(ErrAllocFailed))
	_, err := l.Create()
	var refused *Error
	if !errors.As(err, &refused) || refused.Call != "cublasCreate_v2" ||
		!errors.Is(err, ErrAllocFailed) || err.Error() != "cublasCreate_v2: out of memory (3)" {
		t.Errorf("got %v", err)
	}
	l.control(t, "softblas_refuse", 77)
	if _, err := l.Create(); err == nil || err.Error() != "cublasCreate_v2: status 77 (77)" {
		t.Errorf("got %v", err)
	}
}

func TestALibraryThatLacksAFunctionIsNone(t *testing.T) {
	path := dltest.Compile(t, "libcublas_bare.so", "int cublasCreate_v2(void **h) { return 0; }")
	_, err := Load(path)
	if !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "has no cublasDestroy_v2") {
		t.Errorf("got %v", err)
	}
	t.Setenv(PathVariable, filepath.Join(t.TempDir(), "libcublas.so.12"))
	if _, err := Load(""); !errors.Is(err, ErrNoLibrary) ||
		!strings.Contains(err.Error(), PathVariable) {
		t.Errorf("got %v", err)
	}
}

// wheel makes an empty file where pip would put the library.
func wheel(t *testing.T, prefix, folder, name string) string {
	t.Helper()
	path := filepath.Join(prefix, folder, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWheelsComeBeforeTheSystemAndNewerOnesFirst(t *testing.T) {
	venv, conda := t.TempDir(), t.TempDir()
	const packages = "lib/python3.12/site-packages/nvidia"
	old := wheel(t, venv, packages+"/cublas/lib", "libcublas.so.12")
	recent := wheel(t, venv, packages+"/cu13/lib", "libcublas.so.13")
	other := wheel(t, conda, "lib/python3.11/dist-packages/nvidia/cublas/lib", "libcublas.so.12")
	t.Setenv("PATH", t.TempDir())
	variables := map[string]string{"VIRTUAL_ENV": venv, "CONDA_PREFIX": conda}
	got := candidates(func(name string) string { return variables[name] })
	got = slices.DeleteFunc(got, func(path string) bool {
		return strings.HasPrefix(path, "/usr/local/cuda/")
	})
	want := []string{recent, old, other, "libcublas.so.13", "libcublas.so.12"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
