package reduce

// Op is the operation that combines two elements. The zero value is Sum. An average is a Sum
// whose result is divided: see Average.
type Op uint8

// The operations that every backend knows. The package comment states what they do with NaNs,
// zeros and overflow.
const (
	Sum Op = iota
	Prod
	Min
	Max
	// OpCount is the number of operations.
	OpCount = iota
)

// Valid reports whether op is one of the declared operations.
func (op Op) Valid() bool { return op < OpCount }
