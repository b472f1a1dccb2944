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

func skipSlow(t *testing.T) {
	t.Helper()
	if isRaceDetectorOn && os.Getenv("SYMMEM_TEST_BACKEND") != "nccl" {
		t.Skip(fmt.Errorf("the software GPU takes minutes under the race detector: %w",
			symmem.ErrUnsupported))
	}
}

// gpuVariables returns the environment variables that make ranks use software GPUs, followed by
// extra. If SYMMEM_TEST_BACKEND is nccl, it returns none, so that the ranks use the machine's GPUs.
// If there is no compiler for the software GPU, it skips the test.
func gpuVariables(t *testing.T, extra ...string) []string {
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
	}, extra...)
}
