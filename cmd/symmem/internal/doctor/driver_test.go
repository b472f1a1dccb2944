package doctor

import (
	"errors"
	"testing"

	"symmem/internal/cuda"
)

// TestSecondErrorReplacesCode stores an error of CUDA and then one without a code. The code of the
// first error must not remain, because it would give advice for another error.
func TestSecondErrorReplacesCode(t *testing.T) {
	var d Driver
	d.setError(cuda.ErrNoDevice)
	if d.ErrorCode != int(cuda.ErrNoDevice) {
		t.Errorf("ErrorCode = %d, want %d", d.ErrorCode, cuda.ErrNoDevice)
	}

	d.setError(errors.New("no code"))
	if d.ErrorCode != 0 || d.Error != "no code" {
		t.Errorf("ErrorCode = %d, Error = %q; want 0 and the second error", d.ErrorCode, d.Error)
	}
}
