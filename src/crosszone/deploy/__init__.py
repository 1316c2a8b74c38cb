"""Deploy: a plan -> a bundle of files that start it: one file a framework, one a launcher, and the trainer itself."""
