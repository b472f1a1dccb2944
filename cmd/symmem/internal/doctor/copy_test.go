package doctor

import (
	"os"
	"strings"
	"testing"

	"symmem/internal/softgpu"
	"symmem/internal/sys/systest"
)

// failedCopiesVariable makes TestFailedCopyFreesAddresses measure copies, which fail.
const failedCopiesVariable = "SYMMEM_TEST_FAILED_COPIES"

// TestFailedCopyFreesAddresses checks that a failed allocation frees its range of addresses. It
// measures in another process, because a process loads CUDA only once.
func TestFailedCopyFreesAddresses(t *testing.T) {
	if os.Getenv(failedCopiesVariable) != "" {
		_, err := MeasureCopies(0)
		t.Fatal(err)
	}

	cuda, _, err := softgpu.Build()
	if err != nil {
		t.Fatal(err)
	}

	c := systest.Command(t, systest.Patience, os.Args[0], "-test.run=^"+t.Name()+"$")
	c.Env = append(c.Environ(), failedCopiesVariable+"=1", "SYMMEM_CUDA="+cuda,
		"SOFTGPU_DEVICES=2", "SOFTGPU_FAIL=cuMemCreate:1")
	output, err := c.CombinedOutput()
	if err == nil || !strings.Contains(string(output), "copying from GPU 1 to GPU 0: ") {
		t.Fatalf("output %s, error %v; want a failed copy", output, err)
	}

	if strings.Contains(string(output), "cuMemAddressFree") {
		t.Errorf("output %s; want no failure to free the addresses", output)
	}
}
