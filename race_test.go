//go:build race

package symmem_test

// Races are looked for in this run.
func init() { racing = true }
