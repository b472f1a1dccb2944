package symmem

import (
	"errors"
	"testing"
)

// manyErrors wraps any number of errors, including none, like a result of errors.Join.
type manyErrors []error

func (m manyErrors) Error() string   { return "several" }
func (m manyErrors) Unwrap() []error { return m }

func TestJoinDistinctDropsRepeatedErrors(t *testing.T) {
	lost, late := errors.New("rank 3 is lost"), errors.New("rank 2 is late")
	for name, c := range map[string]struct {
		errs []error
		want string
	}{
		"no errors": {nil, ""},
		"repeated error": {
			[]error{lost, errors.Join(lost, late)}, "rank 3 is lost\nrank 2 is late",
		},
		"joined errors with a text":     {[]error{manyErrors{lost}}, "several"},
		"joined errors without members": {[]error{manyErrors{}}, "several"},
	} {
		got := ""
		if err := joinWithoutDuplicates(c.errs...); err != nil {
			got = err.Error()
		}

		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
