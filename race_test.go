//go:build race

package symmem_test

func init() { racing = true }
