package symmem_test

import (
	"os"
	"os/exec"
	"testing"

	"symmem/driver/nccl/softgpu"
)

// TestTheGPUBackendOnASoftwareGPU runs the tests of this package a second time, in short, in a
// process whose libraries are those of the software GPU. That process has its backend from the
// environment, and a process that has does not come here, so none starts itself again.
func TestTheGPUBackendOnASoftwareGPU(t *testing.T) {
	if os.Getenv(backendVariable) != "" {
		t.Skipf("%s has chosen the backend of this run", backendVariable)
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skipf("the software GPU is compiled: %v", err)
	}
	cuda, nccl, err := softgpu.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), os.Args[0],
		"-test.short", "-test.timeout=5m", "-rapid.checks=20", "-rapid.nofailfile")
	c.Env = append(os.Environ(), backendVariable+"=nccl", "SYMMEM_CUDA="+cuda, "SYMMEM_NCCL="+nccl)
	if said, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
}
