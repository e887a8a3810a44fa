/* Times MPI_Allreduce of floats, out of place and in place, for the sizes and iterations that the arguments give:
   SIZE ITERATIONS WARMUP, again and again. Prints how many ranks there are, then a line for each size: bytes, then the mean time of a call in
   microseconds both ways, averaged over the ranks. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double time_calls(const void *send, void *receive, int count, long warmup, long iterations) {
    for (long i = 0; i < warmup; i++)
        MPI_Allreduce(send, receive, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (long i = 0; i < iterations; i++)
        MPI_Allreduce(send, receive, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double own = (MPI_Wtime() - start) / (double)iterations * 1e6, sum = 0;
    int ranks;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Allreduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return sum / ranks;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (rank == 0)
        printf("ranks %d\n", ranks);
    for (int arg = 1; arg + 2 < argc; arg += 3) {
        size_t bytes = strtoull(argv[arg], NULL, 10);
        long iterations = strtol(argv[arg + 1], NULL, 10), warmup = strtol(argv[arg + 2], NULL, 10);
        float *send = malloc(bytes + 64), *receive = malloc(bytes + 64);
        if (send == NULL || receive == NULL) {
            fprintf(stderr, "no memory for two buffers of %zu bytes\n", bytes);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        int count = (int)(bytes / sizeof(float));
        for (int i = 0; i < count; i++)
            send[i] = 1.0f;
        memset(receive, 0, bytes);
        double apart = time_calls(send, receive, count, warmup, iterations);
        for (int i = 0; i < count; i++)
            if (receive[i] != (float)ranks) {
                fprintf(stderr, "element %d of %zu bytes is %f\n", i, bytes, receive[i]);
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
        /* zeros stay zeros however often they are added */
        memset(receive, 0, bytes);
        double in_place = time_calls(MPI_IN_PLACE, receive, count, warmup, iterations);
        if (rank == 0) {
            printf("%zu %.4f %.4f\n", bytes, apart, in_place);
            fflush(stdout);
        }
        free(send);
        free(receive);
    }
    MPI_Finalize();
    return 0;
}
