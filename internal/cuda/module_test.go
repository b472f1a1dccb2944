package cuda

import (
	"strings"
	"testing"
)

func TestCodeThatNoZeroEndsIsRefused(t *testing.T) {
	for _, code := range []string{"", ".version 8.0"} {
		_, err := new(Driver).ModuleLoadData([]byte(code))
		if err == nil || !strings.Contains(err.Error(), "no zero") {
			t.Errorf("%q: %v", code, err)
		}
	}
}
