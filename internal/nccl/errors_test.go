package nccl

import (
	"errors"
	"testing"
)

func TestErrorsAreTyped(t *testing.T) {
	library, recorder := load(t, "22809", declarations+newerDeclarations)
	recorder.SetResult(5)
	err := library.GroupEnd()
	var typed *Error
	if !errors.Is(err, ErrInvalidUsage) || errors.Is(err, ErrRemote) || !errors.As(err, &typed) {
		t.Fatalf("GroupEnd() = %v, want ErrInvalidUsage", err)
	}

	want := Error{"ncclGroupEnd", ErrInvalidUsage, "invalid usage", "Duplicate GPU detected"}
	if *typed != want {
		t.Errorf("GroupEnd() = %+v, want %+v", *typed, want)
	}

	if want := "ncclGroupEnd: invalid usage (5): Duplicate GPU detected"; err.Error() != want {
		t.Errorf("Error() = %q, want %q", err, want)
	}

	recorder.Reset()
	recorder.SetOutput(1, word32(6))
	if err := library.AsyncError(comm); !errors.Is(err, ErrRemote) {
		t.Errorf("AsyncError = %v, want ErrRemote", err)
	}
}
