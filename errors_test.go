package symmem

import (
	"errors"
	"testing"
)

// manyErrors joins errors as errors.Join does, but may be empty.
type manyErrors []error

func (m manyErrors) Error() string   { return "several" }
func (m manyErrors) Unwrap() []error { return m }

func TestOnceDropsRepeatedErrors(t *testing.T) {
	lost, late := errors.New("rank 3 is lost"), errors.New("rank 2 is late")
	for sentence, c := range map[string]struct {
		errs []error
		want string
	}{
		"nothing is nothing": {nil, ""},
		"what several say is said once": {
			[]error{lost, errors.Join(lost, late)}, "rank 3 is lost\nrank 2 is late",
		},
		"what says more stays whole":      {[]error{manyErrors{lost}}, "several"},
		"what joins nothing is one error": {[]error{manyErrors{}}, "several"},
	} {
		got := ""
		if err := joinDistinct(c.errs...); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", sentence, got, c.want)
		}
	}
}
