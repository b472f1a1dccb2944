package symmem

import (
	"symmem/driver"
	"symmem/driver/host"
)

type backend = driver.Backend

// backends are those that this program has, the one that "auto" prefers first.
var backends = []backend{host.Backend{}}
