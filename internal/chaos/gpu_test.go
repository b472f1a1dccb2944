package chaos

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"symmem"
	"symmem/internal/softgpu"
)

// gpuVariables returns the variables of ranks that have GPUs: those of the machine where the
// variable SYMMEM_TEST_BACKEND is nccl, else GPUs of software, for which it adds more variables. A
// test that can have neither is skipped.
func gpuVariables(t *testing.T, more ...string) []string {
	t.Helper()
	if os.Getenv("SYMMEM_TEST_BACKEND") == "nccl" {
		return nil
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip(fmt.Errorf("compiling the software GPU: %w", errors.Join(err, symmem.ErrUnsupported)))
	}
	cuda, nccl, err := softgpu.Build()
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{
		"SYMMEM_CUDA=" + cuda, "SYMMEM_NCCL=" + nccl, "SOFTGPU_FABRIC=1", "SOFTGPU_DEVICES=8",
	}, more...)
}
