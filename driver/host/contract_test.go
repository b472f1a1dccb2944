package host

import (
	"testing"

	"symmem/driver/drivertest"
)

func TestContract(t *testing.T) {
	drivertest.Run(t, drivertest.Harness{Open: Backend{}.Open, Ranks: 8})
}
