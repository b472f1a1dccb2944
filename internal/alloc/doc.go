// Package alloc is the placement core of a pool.
package alloc
