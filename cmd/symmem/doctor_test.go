package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"symmem/driver/nccl/softgpu"
)

// TestDoctorScripts runs doctor where there is no GPU, and on GPUs of software, which the scripts
// are given: $CUDA and $NCCL are their libraries. It also starts ranks as the scripts in $EXAMPLES
// do.
func TestDoctorScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the software GPU")
	}
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	cuda, nccl, err := softgpu.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/doctor",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("CUDA", cuda)
			e.Setenv("NCCL", nccl)
			e.Setenv("EXAMPLES", examples)
			e.Setenv("TMPDIR", filepath.Join(e.WorkDir, "tmp"))
			return os.MkdirAll(filepath.Join(e.WorkDir, "tmp"), 0o700)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}
